"""From what probes and routers see to what an instance is worth: the watch, the log's fold and the choice together."""

from evenload.collector.engines.page import Page
from evenload.collector.watch import Watch
from evenload.routing.exclusion import exclusion
from evenload.routing.policy import InstanceView, Request
from evenload.schemas import Event, InstanceState, Outcome
from evenload.scoring import apply, snapshot
from evenload.scoring.config import DEFAULT

T0 = 1_000_000


class Instance:
    """One instance whose watch and state follow each other, without Kafka between them."""

    def __init__(self) -> None:
        self.watch = Watch("i", 250, stall_ms=10_000)
        self.state = InstanceState(instance="i", log_ms=T0)
        self.now_ms = T0
        for second in range(1, 11):  # long enough to be warm
            self.poll(Page(0, 0, 0.0, progress=0, started_s=1.0))
            self.tell([Outcome(instance="i", kind="ok")])
            self.now_ms = T0 + second * 1_000

    def tell(self, events: list[Event]) -> None:
        for event in events:
            self.state = apply(self.state, event, self.now_ms)

    def poll(self, page: Page | None, health: int = 200) -> None:
        """One poll, or one that is refused; then a snapshot."""
        if page is None:
            self.tell(self.watch.on_failure("refused", self.now_ms))
        else:
            self.tell(self.watch.on_page(page, self.now_ms))
            self.tell(self.watch.on_health(health, self.now_ms))
            if self.watch.wants_models():
                self.tell(self.watch.on_models(True, self.now_ms))
        self.tell(self.watch.on_snapshot(self.state, self.now_ms))

    @property
    def score(self) -> float:
        return snapshot(self.state, self.now_ms).score

    @property
    def excluded(self) -> str:
        view = InstanceView(instance="i", state=self.state, config=DEFAULT, score=self.score)
        return exclusion(view, Request(), self.now_ms)


def test_refused_connections_are_score_0_and_not_idle_and_what_comes_back_warms_up() -> None:
    """F44."""
    one = Instance()
    assert (one.score, one.excluded) == (100.0, "")
    one.poll(None)
    assert (one.score, one.excluded) == (0.0, "not_ready")
    one.now_ms += 5_000
    one.poll(Page(0, 0, 0.0, progress=0, started_s=2.0))
    assert (one.excluded, one.state.restarts) == ("", 1)
    assert one.score <= 30.0
    one.now_ms += 2_000
    one.tell([Outcome(instance="i", kind="ok")])
    assert 30.0 <= one.score <= 60.0


def test_an_engine_that_hangs_while_health_says_200_is_bypassed_on_passive_evidence_alone() -> None:
    """F45."""
    one = Instance()
    for _ in range(44):
        one.poll(Page(4, 0, 0.5, progress=7, started_s=1.0))
        one.now_ms += 250
    assert (one.score, one.excluded, one.state.cause) == (0.0, "not_ready", "stalled")
    one.poll(Page(4, 0, 0.5, progress=8, started_s=1.0))
    assert (one.excluded, one.state.restarts) == ("", 0)


def test_an_engine_that_drains_while_health_says_200_gets_nothing_until_its_next_process() -> None:
    """What a real vLLM does after SIGTERM: running streams end well, new requests get 500, `/health` stays 200."""
    one = Instance()
    refusal = Outcome(instance="i", kind="http_error", status=500, cause="draining")
    one.tell([refusal, Outcome(instance="i", kind="ok"), refusal])
    one.poll(Page(2, 0, 0.5, progress=7, started_s=1.0))
    assert one.excluded == "draining"
    one.now_ms += 5_000
    one.poll(None)
    one.now_ms += 20_000
    one.poll(Page(0, 0, 0.0, progress=0, started_s=2.0))
    assert one.excluded == ""


def test_a_gauge_that_vanishes_lowers_nothing_and_raises_nothing() -> None:
    """F30: unknown is not zero, and not full either."""
    one = Instance()
    one.poll(Page(4, 15, 0.5, progress=1, started_s=1.0))
    both = one.score
    one.poll(Page(4, 15, None, progress=2, started_s=1.0))
    assert one.score == both < 100
    assert one.state.kv_usage is None
