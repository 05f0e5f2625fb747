"""`peak-ewma-decay`: Peak-EWMA in its usable form.

    cost = (EWMA of TTFT in time + 5 s * error term) * (in-flight / weight + 1)
    P2C, drawn by weight, and 0.5 % probes, among those of the candidates that are well, if any is

The EWMA decays over 10 s without samples and learns from the ages of waiting requests (`evenload.scoring.ewma`). The
error term makes failing dearer than any healthy latency. That is not enough where most fail: two drawn are then often
two bad ones. So who cools after a 429 or 503, or fails a fifth of its requests, is put aside while another one is well;
it is back when it has cooled, or its failures are 10 s old. A retry goes to one that has answered in these 10 s, and
not failed, if any has: where several turn bad, or are back, at once, one request must not have them in turn. It does
not know prompt sizes.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from evenload.routing.p2c import p2c
from evenload.routing.peak_ewma import peak_cost
from evenload.routing.policy import Choice, InstanceView, Request, Rng
from evenload.routing.probe import with_probes
from evenload.routing.weights import weights_of
from evenload.scoring.damping import terms
from evenload.scoring.ewma import faded

ERROR_PENALTY_MS = 5_000.0


def _latency_ms(view: InstanceView, error: float, now_ms: int) -> float | None:
    state = view.state
    known = faded(state.live_ttft_ms, now_ms - state.live_at_ms, view.config)
    return (known or 0.0) + ERROR_PENALTY_MS * error if error else known


def _well(candidates: Sequence[InstanceView], errors: Sequence[float], request: Request, now_ms: int) -> list[int]:
    """Return who is not put aside."""
    well = [
        index
        for index, view in enumerate(candidates)
        if now_ms >= view.state.cooling_until_ms
        and (errors[index] < 1.0 or view.state.err_sum <= 1)  # one odd failure convicts nobody
    ] or list(range(len(candidates)))
    if not request.tried:
        return well
    answer = [index for index in well if candidates[index].state.ok_sum] or well
    return [index for index in answer if not candidates[index].state.err_sum] or answer


class PeakEwmaDecay:
    """P2C on the decaying, censored EWMA times own load, with probes, among those that are well."""

    name = "peak-ewma-decay"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheaper of two."""
        errors = [terms(view.state, view.state.tick, view.config)[1] for view in candidates]
        costs = [
            peak_cost(_latency_ms(view, error, now_ms), view.in_flight / view.weight)
            for view, error in zip(candidates, errors, strict=True)
        ]
        well = _well(candidates, errors, request, now_ms)
        if len(well) == len(candidates):
            return _cheaper(candidates, costs, now_ms, rng)
        choice = _cheaper([candidates[index] for index in well], [costs[index] for index in well], now_ms, rng)
        return replace(choice, index=well[choice.index], costs=costs)


def _cheaper(candidates: Sequence[InstanceView], costs: list[float], now_ms: int, rng: Rng) -> Choice:
    return with_probes(candidates, now_ms, rng, lambda: p2c(costs, rng, weights_of(candidates)))
