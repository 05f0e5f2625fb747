"""The two oracles: distances to the limit.

L0: each request's unloaded TTFT on the fastest instance. Nobody beats it.

O: zero staleness, true output lengths, true faults; each arrival is rolled forward on every instance (`lookahead.py`)
and goes where

    own TTFT + own prefill work * (requests awaiting there + requests expected there while it is worked off)
    + KV overflow in tokens * time to recompute a token * 2
    + own TPOT * TTFT limit / TPOT limit * 6        where goodput is the aim

is least. The second term is the harm to others: under first-come order whoever comes behind waits for this prompt;
those are the ones expected within the backlog. The third stands for preemptions: what all held requests will have in
the cache in the end, beyond what fits. The fourth balances the pace of tokens, with the lengths of all answers known.
Its factor is by trial (none and 1 miss more limits). Weighing what a request adds to the TPOT of others, too, sorts
requests by length and misses far more. It is greedy, so a lower cost is possible in principle; it is a yardstick, not a
bound.
"""

from collections.abc import Sequence

from evenload.sim.engine import Engine
from evenload.sim.instance import Instance
from evenload.sim.jobs import Job
from evenload.sim.lookahead import outlook, tpot_ms
from evenload.sim.provider import Provider
from evenload.sim.scenario import Slo

DOWN_MS = 1e9
TPOT_FACTOR = 6.0


class Oracle:
    """Chooses by the truth.

    Args:
        instances: as they are.
        rate_rps: mean arrivals of the whole fleet.
        slo: where the aim is goodput; None aims at TTFT alone.
    """

    def __init__(self, instances: Sequence[Instance], rate_rps: float, slo: Slo | None = None) -> None:
        self._instances = instances
        self._tpot_weight = 0.0 if slo is None else TPOT_FACTOR * slo.ttft_ms / slo.tpot_ms
        self._rate_per_ms = rate_rps / 1000.0 / len(instances)

    def choose(self, job: Job, indices: Sequence[int], now_ms: float) -> int:
        """Return the index of the best instance; the first of equals in a rotation by job."""
        turn = job.number % len(indices)
        order = [*indices[turn:], *indices[:turn]]
        return min(order, key=lambda index: self._cost_ms(self._instances[index], job, now_ms))

    def _cost_ms(self, instance: Instance, job: Job, now_ms: float) -> float:
        if not instance.up:
            return DOWN_MS
        penalty_ms = DOWN_MS * instance.fail_share
        core = instance.core
        if isinstance(core, Provider):
            return penalty_ms + core.ttft_of(job.noise, job.draw)
        # Emissions of this moment stay in the engine until its own event comes up.
        core.advance_to(now_ms)
        seen = outlook(core, job, now_ms)
        own_ms = seen.first_token_ms - now_ms
        harm_ms = seen.work_ms * (seen.awaiting + self._rate_per_ms * own_ms)
        if core.would_refuse(job.prompt_tokens):
            penalty_ms += DOWN_MS / 2
        pace_ms = self._tpot_weight * tpot_ms(core, job) if self._tpot_weight else 0.0
        return penalty_ms + own_ms + harm_ms + _overflow_ms(core, job) + pace_ms


def _overflow_ms(engine: Engine, job: Job) -> float:
    machine = engine.preset
    beyond = engine.final_tokens + job.prompt_tokens + job.output_tokens - machine.kv_tokens
    return 2.0 * machine.per_token_ms * beyond if beyond > 0 else 0.0
