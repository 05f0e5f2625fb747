"""The same scoring by changing one state in place: what a first version would do, as a yardstick for `apply`.

No copies, no grid, no dedupe, no generations, no memory of what a snapshot needs later; floats of the wall second. It
answers the question what purity costs.
"""

from evenload.schemas import EngineGauges, Event, FirstToken, Outcome, RouterLoad
from evenload.scoring import health_score


class NaiveScore:
    """One instance, changed by each event; `score` is up to date after each."""

    def __init__(self) -> None:
        self.ewma_ttft_ms: float | None = None
        self.ok = [0] * 10
        self.err = [0] * 10
        self.second = 0
        self.waiting: int | None = None
        self.kv_usage: float | None = None
        self.loads: dict[int, tuple[int, int]] = {}
        self.score = 30.0
        self.log_ms = 0

    def apply(self, event: Event, log_ms: int) -> float:
        """Take an event in and return the new score."""
        second = log_ms // 1000
        for passed in range(self.second + 1, min(second, self.second + 10) + 1):
            self.ok[passed % 10] = self.err[passed % 10] = 0
        self.second = second
        if isinstance(event, FirstToken):
            old = self.ewma_ttft_ms
            self.ewma_ttft_ms = event.ttft_ms if old is None else old + 0.2 * (event.ttft_ms - old)
        elif isinstance(event, Outcome):
            (self.ok if event.kind == "ok" else self.err)[second % 10] += 1
        elif isinstance(event, EngineGauges):
            self.waiting, self.kv_usage = event.waiting, event.kv_usage
        elif isinstance(event, RouterLoad):
            self.loads[0] = (event.in_flight, event.awaiting)
        errors, successes = sum(self.err), sum(self.ok)
        ratio = errors / (errors + successes) if errors else 0.0
        raw = health_score(self.ewma_ttft_ms, ratio, self.waiting, self.kv_usage)
        self.score = min(raw, self.score + 15.0 * (log_ms - self.log_ms) / 1000)
        self.log_ms = log_ms
        return self.score
