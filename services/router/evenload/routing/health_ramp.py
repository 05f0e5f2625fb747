"""`health-ramp`: the health score in its usable form.

    ramp = (score / 100)^8                    times its weight the chance of being drawn; the score is damped
    cost = (in-flight / weight + 1) / ramp    P2C; in-flight counts all replicas' requests
    costs within 5 % are ties; 0.5 % probes
    unmeasured for 2 s and a request of ours waits there: ramp 0 (half open: one question at a time)

The score reads censored evidence (the ages of waiting requests), so a stall shows before its first slow token, and it
fades, so that a healed instance is found again. The eighth power makes 65 points, the least that latency alone can
give, a thirtieth of the draws, and 60, an instance that fails everything at once, a sixtieth: the published score
spreads very different instances over few points. It does not know prompt sizes.
"""

from collections.abc import Sequence

from evenload.routing.p2c import WEIGHT_MIN, p2c
from evenload.routing.policy import Choice, InstanceView, Request, Rng
from evenload.routing.probe import PROBE_AFTER_MS, with_probes

TIE_SHARE = 0.05


def draw_weight(score: float) -> float:
    """Return the draw weight, 0..1, of a score 0..100."""
    squared = score * score / 10_000.0
    fourth = squared * squared
    weight = fourth * fourth
    return weight if weight > WEIGHT_MIN else WEIGHT_MIN


def _asked(view: InstanceView, now_ms: int) -> bool:
    """Tell whether the instance is known by faded evidence only, and a request of ours is to bring new."""
    return view.awaiting > 0 and now_ms - view.state.live_at_ms > PROBE_AFTER_MS


class HealthRamp:
    """Weighted P2C on in-flight over draw weight, with probes."""

    name = "health-ramp"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheaper of two, drawn by weight."""
        ramps = [WEIGHT_MIN if _asked(view, now_ms) else draw_weight(view.score) for view in candidates]
        costs = [
            ((view.in_flight + view.others_in_flight) / view.weight + 1.0) / ramp
            for view, ramp in zip(candidates, ramps, strict=True)
        ]
        weights = [ramp * view.weight for view, ramp in zip(candidates, ramps, strict=True)]
        return with_probes(candidates, now_ms, rng, lambda: p2c(costs, rng, weights, TIE_SHARE))
