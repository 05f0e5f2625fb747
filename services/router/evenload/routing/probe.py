"""Exploration: a small share of requests goes to whoever has not been measured for longest.

A policy that only looks at estimates never learns that a shunned instance has healed. At most `share` of the choices
are probes, and none while every candidate has been measured within `PROBE_AFTER_MS`.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from evenload.routing.policy import Choice, InstanceView, Rng

PROBE_SHARE = 0.005
PROBE_AFTER_MS = 2_000


def with_probes(
    candidates: Sequence[InstanceView],
    now_ms: int,
    rng: Rng,
    otherwise: Callable[[], Choice],
    share: float = PROBE_SHARE,
) -> Choice:
    """Return a probe with probability `share` if somebody needs one, else what `otherwise` chooses."""
    stalest = min(range(len(candidates)), key=lambda index: (candidates[index].state.live_at_ms, index))
    if len(candidates) == 1 or now_ms - candidates[stalest].state.live_at_ms < PROBE_AFTER_MS:
        return otherwise()
    if rng.random() < share:
        return Choice(index=stalest, reason="probe", probability=share, costs=[0.0] * len(candidates))
    choice = otherwise()
    extra = share if choice.index == stalest else 0.0
    return replace(choice, probability=choice.probability * (1.0 - share) + extra)
