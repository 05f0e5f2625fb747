"""What a policy is: one method that picks an instance. Scoring says how loaded, policy says who.

House rules: pure; `now_ms` and `rng` are arguments; a policy keeps nothing between calls; costs use + - * / only, so
that an auditor gets the same choice from the recorded view and draws.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from evenload.schemas import InstanceState
from evenload.scoring import ScoringConfig


class Rng(Protocol):
    """The only source of randomness: uniforms in [0, 1)."""

    def random(self) -> float:
        """Return the next uniform."""
        ...


class RecordedRng:
    """Passes uniforms on and keeps them for the decision record."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self.draws: list[float] = []

    def random(self) -> float:
        """Return the next uniform."""
        draw = self._rng.random()
        self.draws.append(draw)
        return draw


class ReplayedRng:
    """Gives recorded uniforms again; IndexError when the policy wants more than were recorded."""

    def __init__(self, draws: Sequence[float]) -> None:
        self._draws = iter(draws)

    def random(self) -> float:
        """Return the next recorded uniform."""
        try:
            return next(self._draws)
        except StopIteration:
            raise IndexError("the policy drew more uniforms than the decision recorded") from None


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """What a policy may know of a request.

    Attributes:
        ordinal: how many requests this router dispatched to the pool before (for round robin).
        prefix: hash of the prompt's beginning, which the requests of one conversation share; 0 where it is not known.
        tried: instances that earlier attempts of the request used.
    """

    prompt_tokens: int = 0
    ordinal: int = 0
    prefix: int = 0
    tried: tuple[str, ...] = ()


class InstanceView(Struct, kw_only=True, gc=False):
    """One instance as this router believes it to be at the moment of a choice.

    Attributes:
        state: folded state, advanced to the moment.
        score: published health score, 0..100.
        in_flight, awaiting, in_flight_tokens, awaiting_tokens: own leases; exact.
        others_in_flight, others_awaiting: other replicas', as of the snapshot, as are
            others_in_flight_tokens, others_awaiting_tokens.
        cached_tokens: prompt tokens of this request that the instance probably has in its prefix cache (`prefixes.py`).
        snapshot_ms: log time of the snapshot below it, None when there was none yet.
        pending_ms: when the oldest of the own events was observed that this snapshot does not include, None when it
            includes all: what others reported since then is not in it either.
        weight: its share: it is treated like so many instances, each with that part of its load (`weights.py`).
        priority: its tier, 0 first (`tiers.py`).
    """

    instance: str
    state: InstanceState
    config: ScoringConfig
    score: float
    in_flight: int = 0
    awaiting: int = 0
    in_flight_tokens: int = 0
    awaiting_tokens: int = 0
    others_in_flight: int = 0
    others_awaiting: int = 0
    others_in_flight_tokens: int = 0
    others_awaiting_tokens: int = 0
    cached_tokens: int = 0
    snapshot_ms: int | None = None
    pending_ms: int | None = None
    weight: float = 1.0
    priority: int = 0


class Choice(Struct, frozen=True, kw_only=True, gc=False):
    """Who, why, how likely that was, and each candidate's cost (the lower, the better)."""

    index: int
    reason: str
    probability: float
    costs: list[float]


class Policy(Protocol):
    """Picks one of the candidates, all of which may be chosen."""

    name: str

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the choice among one or more candidates at log time `now_ms`."""
        ...
