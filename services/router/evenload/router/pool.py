"""A pool: instances that serve the same models under one policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evenload.router.admission import Gate
from evenload.router.homes import Homes
from evenload.router.limits import Limits
from evenload.routing import Policy
from evenload.routing.retry_budget import RetryBudget

BYTES_PER_TOKEN = 4.0


class Place(NamedTuple):
    """What an instance is within its pool."""

    weight: float = 1.0
    priority: int = 0


@dataclass(slots=True)
class Pool:
    """Instances that serve the same models under one policy.

    Attributes:
        places: weight and priority of those instances that have other ones than 1 and 0.
        spill_over_ms: predicted TTFT beyond which the next priority joins; None: only when nobody is usable.
        renames: whether answers name the model as the client did.
        ordinal: requests dispatched so far, retries not counted.
        gate: bounds its requests; None does not.
        homes: says which prompts are to meet those that begin alike; None: none is.
        bytes_per_token: learned from the `usage` of answers; `token_error` is the smoothed relative error of estimates.
    """

    name: str
    models: tuple[str, ...]
    policy: Policy
    instances: tuple[str, ...]
    config_digest: str
    limits: Limits
    renames: bool = False
    places: Mapping[str, Place] = field(default_factory=dict)
    spill_over_ms: float | None = None
    ordinal: int = 0
    bytes_per_token: float = BYTES_PER_TOKEN
    token_error: float = 0.0
    retries: RetryBudget = field(default_factory=RetryBudget)
    gate: Gate | None = None
    homes: Homes | None = None

    def inherit(self, before: "Pool") -> None:
        """Go on from what the pool of this name has counted and learned; gate and homes stay, with new bounds."""
        self.ordinal = before.ordinal
        self.bytes_per_token, self.token_error = before.bytes_per_token, before.token_error
        self.retries.inherit(before.retries)
        if self.gate is not None and before.gate is not None:
            before.gate.bounds, self.gate = self.gate.bounds, before.gate
        if self.homes is not None and before.homes is not None:
            before.homes.instances, before.homes.certain = self.homes.instances, self.homes.certain
            self.homes = before.homes
