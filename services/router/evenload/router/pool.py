"""A pool: instances that serve the same models under one policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evenload.router.admission import Gate
from evenload.router.beginnings import Beginnings
from evenload.router.homes import Homes
from evenload.router.limits import Limits
from evenload.router.lingering import USUAL_WEIGHT
from evenload.routing import Policy
from evenload.routing.retry_budget import RetryBudget

BYTES_PER_TOKEN = 4.0
RATIO_WEIGHT = 0.05  # of an answer's count in the learned ratio


class Place(NamedTuple):
    """What an instance is within its pool."""

    weight: float = 1.0
    priority: int = 0


@dataclass(slots=True)
class Pool:
    """Instances that serve the same models under one policy.

    Attributes:
        places: weight and priority of those instances that have other ones than 1 and 0.
        spill_over_ms: expected TTFT beyond which the next priority joins; None: only for outages (`tiers.py`).
        renames: whether answers name the model as the client did.
        ordinal: requests dispatched so far, retries not counted.
        usual_ms: smoothed duration of answers, 0 before the first.
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
    usual_ms: float = 0.0
    retries: RetryBudget = field(default_factory=RetryBudget)
    gate: Gate | None = None
    homes: Homes | None = None

    @property
    def beginnings(self) -> Beginnings | None:
        """What hashes how prompts begin; None where nobody wants to know."""
        return None if self.homes is None else self.homes.beginnings

    def estimate_tokens(self, prompt_bytes: int) -> int:
        """Return the estimated prompt tokens of so many bytes of UTF-8."""
        return int(prompt_bytes / self.bytes_per_token) + 1

    def learn_tokens(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Correct the bytes-per-token ratio by a count that an engine reported."""
        if prompt_tokens <= 0 or prompt_bytes <= 0:
            return
        off = abs(prompt_bytes / self.bytes_per_token - prompt_tokens) / prompt_tokens
        self.token_error += RATIO_WEIGHT * (off - self.token_error)
        self.bytes_per_token += RATIO_WEIGHT * (prompt_bytes / prompt_tokens - self.bytes_per_token)

    def learn_duration(self, duration_ms: float) -> None:
        """Take in how long an answer took."""
        weight = USUAL_WEIGHT if self.usual_ms else 1.0
        self.usual_ms += weight * (duration_ms - self.usual_ms)

    def inherit(self, before: "Pool") -> None:
        """Go on from what the pool of this name has counted and learned; gate and homes stay, with new bounds."""
        self.ordinal, self.usual_ms = before.ordinal, before.usual_ms
        self.bytes_per_token, self.token_error = before.bytes_per_token, before.token_error
        self.retries.inherit(before.retries)
        if self.gate is not None and before.gate is not None:
            before.gate.bounds, self.gate = self.gate.bounds, before.gate
        if self.homes is not None and before.homes is not None:
            before.homes.instances, before.homes.certain = self.homes.instances, self.homes.certain
            self.homes = before.homes
