"""Two routers, a log, and a scorer that crashes: a router's view is exact after every step of any interleaving.

The parts are the production ones (Dispatcher with FleetView, LeaseBook and LogClock; Lane; PartitionScorer; Recovered);
only Kafka is lists here, and time is a number. What may happen: batches sent twice because an acknowledgement was lost,
acknowledgements told late or never, snapshots written twice or late, checkpoints that fail half-way, restarts of the
scorer from what was checkpointed, a predecessor that goes on writing for a while, routers killed and started again.

Hypothesis looks for short interleavings and shrinks them; test_view_walks.py goes further with the same steps.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from evenload.router.ports import Ask
from evenload.schemas import (
    Batch,
    EngineGauges,
    Event,
    InstanceState,
    Membership,
    RouterLoad,
    SnapshotBatch,
    decode_batch,
    encode,
)
from evenload.scorer.core import Checkpoint, Options, PartitionScorer
from evenload.scorer.recovery import Recovered
from evenload.scoring import ScoringConfig, apply, at, fold, fresh
from tests.routing.view_world import CONFIG, NAMES, T0, Own, Router

TAIL_MS_MAX = 9_500  # the view keeps own events for 10 s; the machine lets none grow that old
COLLECTOR = 99


def config_of(_: str) -> ScoringConfig:
    return CONFIG


class Exactness(RuleBasedStateMachine):
    """See the module docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.mono_ms = 0.0
        self.log: list[tuple[int, int, bytes]] = []
        self.batches: list[Batch] = []
        self.folds: list[dict[str, InstanceState]] = []  # the pure fold after each record
        self.snapshots: list[SnapshotBatch] = []
        self.changelog: list[tuple[str, bytes | None, int, int, int]] = []  # as `Recovered.add` takes them
        self.written = 0
        self.since: dict[PartitionScorer, int] = {}
        self.committed: int | None = None
        self.scorer = self.recover()
        self.zombie: PartitionScorer | None = None
        self.collector_seq = 0
        self.generation = dict.fromkeys(NAMES, 0)
        self.incarnations = 0
        self.routers: list[Router] = []
        for _ in range(2):
            self.routers.append(self.new_router(0))

    def new_router(self, first_record: int) -> Router:
        self.incarnations += 1
        return Router(self.incarnations, lambda: self.mono_ms, first_record)

    @initialize()
    def every_instance_is_known(self) -> None:
        self.collect([Membership(instance=name, change="joined") for name in NAMES])
        self.score(1)
        self.publish("taken")

    # ---- routers

    @rule(who=st.integers(0, 1), tokens=st.integers(1, 6_000))
    def start_request(self, who: int, tokens: int) -> None:
        router = self.routers[who]
        ask = Ask(f"r{len(router.own)}", "m", tokens, True, "chat/completions")
        router.running.append(router.dispatcher.choose(ask, (), 0))

    @rule(who=st.integers(0, 1), which=st.integers(0, 50), ttft_ms=st.sampled_from([30.0, 400.0, 2_500.0]))
    def first_token(self, who: int, which: int, ttft_ms: float) -> None:
        running = self.routers[who].running
        if running:
            running[which % len(running)].first_token(ttft_ms)

    @rule(
        who=st.integers(0, 1),
        which=st.integers(0, 50),
        kind=st.sampled_from(["ok", "ok", "http_error", "saturated", "client_gone"]),
        twice=st.booleans(),
    )
    def finish(self, who: int, which: int, kind: str, twice: bool) -> None:
        running = self.routers[who].running
        if not running:
            return
        attempt = running.pop(which % len(running))
        for _ in range(1 + twice):
            attempt.finish(
                kind,  # type: ignore[arg-type]
                status=200,
                cause="",
                retry_after_ms=None,
                ttft_ms=None,
                duration_ms=5.0,
                output_tokens=3,
            )

    @rule(who=st.integers(0, 1), kind=st.sampled_from(["ok", "ok", "ok", "http_error"]))
    def answer_at_once(self, who: int, kind: str) -> None:
        """A whole request, and what it says reaches the log; Kafka's answer is on its way."""
        self.start_request(who, 100)
        self.finish(who, -1, kind, False)
        self.send(who, 9, True)

    @rule(who=st.integers(0, 1))
    def tick(self, who: int) -> None:
        self.routers[who].dispatcher.tick()

    @rule(who=st.integers(0, 1), count=st.integers(1, 3), acknowledged=st.booleans())
    def send(self, who: int, count: int, acknowledged: bool) -> None:
        """The oldest batches reach the log; without an acknowledgement they will do so again."""
        router = self.routers[who]
        router.lane.expire()
        group = router.lane.group()[:count]
        for pending in group:
            offset = self.append(pending.encoded("r", router.incarnation, self.mono_ms / 1000))
            if acknowledged:
                router.acks.append((pending.seq, offset, self.log[offset][1]))
        if acknowledged:
            router.lane.acknowledge(len(group))

    @rule(who=st.integers(0, 1), told=st.booleans())
    def acknowledge(self, who: int, told: bool) -> None:
        """The view learns an offset, or never does: Kafka no longer knew it."""
        router = self.routers[who]
        if router.acks:
            seq, offset, at_ms = router.acks.pop(0)
            if told:
                router.dispatcher.view.acknowledge(0, seq, offset, at_ms)

    @rule(who=st.integers(0, 1), count=st.integers(1, 4))
    def read(self, who: int, count: int) -> None:
        router = self.routers[who]
        for offset in range(router.next_record, min(len(self.snapshots), router.next_record + count)):
            router.take(offset, self.snapshots[offset])
            router.next_record = offset + 1

    @rule(who=st.integers(0, 1), look_back=st.integers(0, 20))
    def restart_router(self, who: int, look_back: int) -> None:
        """kill -9 and start: what it had not sent is gone, and so is its load after a while."""
        self.routers[who] = self.new_router(max(0, len(self.snapshots) - look_back))

    # ---- the log and other producers

    def append(self, data: bytes) -> int:
        offset, at_ms = len(self.log), T0 + int(self.mono_ms)
        batch = decode_batch(data)
        states = self.folds[-1] if self.folds else {}
        self.folds.append(states | fold(states, batch, offset, at_ms, config_of))
        self.batches.append(batch)
        self.log.append((offset, at_ms, data))
        return offset

    def collect(self, events: list[Event]) -> None:
        batch = Batch(v=1, producer="c", incarnation=COLLECTOR, seq=self.collector_seq, events=events)
        self.collector_seq += 1
        self.append(encode(batch))

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["gauges", "ready", "not_ready", "joined"]))
    def see_engine(self, name: str, what: str) -> None:
        """The collector says something; `joined` is the next generation of an instance."""
        event: Event = EngineGauges(instance=name, gen=self.generation[name], waiting=self.collector_seq % 40)
        if what != "gauges":
            self.generation[name] += what == "joined"
            event = Membership(
                instance=name,
                gen=self.generation[name],
                change=what,  # type: ignore[arg-type]
                cause="refused",
            )
        self.collect([event])

    # ---- the scorer

    def recover(self) -> PartitionScorer:
        """What `ScorerApp` makes of changelog and committed offset."""
        found = Recovered()
        for record in self.changelog:
            found.add(*record)
        resume = found.resume(self.committed) or 0
        scorer = PartitionScorer(
            0,
            Options(flush_ms=50.0, heartbeat_ms=1_000.0, checkpoint_ms=0.0),
            config_of,
            states=found.states(),
            position=resume - 1,
            caught_up_at=found.through,
            rewrite=frozenset(found.suspects),
        )
        self.since[scorer] = self.written
        return scorer

    def apply_next(self, scorer: PartitionScorer, count: int) -> None:
        for offset, at_ms, data in self.log[scorer.position + 1 :][:count]:
            assert scorer.on_record(offset, at_ms, data, self.mono_ms) is None

    @rule(count=st.integers(1, 6))
    def score(self, count: int) -> None:
        self.apply_next(self.scorer, count)

    @rule(answer=st.sampled_from(["taken", "taken", "taken", "answer lost", "lost"]))
    def publish(self, answer: str) -> None:
        self.publish_of(self.scorer, answer)

    @rule(count=st.integers(1, 2), readers=st.sampled_from([(0,), (1,), (0, 1)]))
    def score_publish_and_read(self, count: int, readers: tuple[int, ...]) -> None:
        """The quick way round, as nearly always."""
        self.apply_next(self.scorer, count)
        self.time_goes_on(60.0)
        self.publish("taken")
        for who in readers:
            self.read(who, len(self.snapshots))

    def publish_of(self, scorer: PartitionScorer, answer: str) -> None:
        for batch in scorer.snapshots(self.mono_ms):
            if answer != "lost":
                self.snapshots.append(batch)
            if answer != "taken":
                scorer.unpublished(batch)

    @rule(outcome=st.sampled_from(["committed", "committed", "not committed", "half written", "lost"]))
    def checkpoint(self, outcome: str) -> None:
        checkpoint = self.scorer.checkpoint(self.mono_ms)
        if checkpoint is None:
            return
        self.write(self.scorer, checkpoint, outcome)
        if outcome in ("half written", "lost"):
            self.scorer.unacknowledged(checkpoint)
            return
        self.scorer.acknowledged(checkpoint)
        if outcome == "committed":
            self.committed = checkpoint.through + 1

    def write(self, scorer: PartitionScorer, checkpoint: Checkpoint, outcome: str) -> None:
        through, since = checkpoint.through, self.since[scorer]
        records = [
            (name, data, through, since, self.written + number)
            for number, (name, data) in enumerate(checkpoint.records())
        ]
        if outcome == "half written":
            records = records[:1] if len(records) > 1 else []
        if outcome != "lost":
            self.changelog += records
            self.written += len(records)

    @rule(compacted=st.booleans(), lives_on=st.booleans())
    def restart_scorer(self, compacted: bool, lives_on: bool) -> None:
        """kill -9 or a hand-over; the predecessor may go on for a while without knowing."""
        self.zombie = self.scorer if lives_on else None
        if compacted:
            last = {record[0]: number for number, record in enumerate(self.changelog)}
            self.changelog = [self.changelog[number] for number in sorted(last.values())]
        self.scorer = self.recover()

    @rule(count=st.integers(0, 3), writes=st.booleans())
    def zombie_goes_on(self, count: int, writes: bool) -> None:
        zombie = self.zombie
        if zombie is None:
            return
        self.apply_next(zombie, count)
        self.publish_of(zombie, "taken")
        checkpoint = zombie.checkpoint(self.mono_ms)
        knows_better = self.since[zombie] < self.since[self.scorer]  # else nothing tells the two apart (recovery.py)
        if checkpoint is not None and writes and knows_better:
            self.write(zombie, checkpoint, "not committed")
            zombie.acknowledged(checkpoint)

    # ---- time

    @rule(by_ms=st.sampled_from([1.0, 30.0, 120.0, 700.0, 2_500.0]))
    def time_goes_on(self, by_ms: float) -> None:
        for router in self.routers:
            oldest = [own.at_ms for own in router.own if not self.is_included(router, own)]
            if oldest and self.mono_ms + by_ms - (min(oldest) - T0) > TAIL_MS_MAX:
                self.settle()
        self.mono_ms += by_ms

    def settle(self) -> None:
        """Everything arrives: the bound of the tail is another test's business."""
        for who, router in enumerate(self.routers):
            while router.lane.oldest_s() is not None:
                self.send(who, 100, True)
        self.score(len(self.log))
        self.mono_ms += 1_000.0  # the heartbeat: every instance is due
        self.publish("taken")
        for who in range(2):
            self.read(who, len(self.snapshots))

    # ---- what must hold

    def is_included(self, router: Router, own: Own) -> bool:
        as_of = router.newest.get(own.event.instance, (-1, 0, None))[0]
        return any(
            batch.incarnation == router.incarnation and batch.seq == own.seq for batch in self.batches[: as_of + 1]
        )

    @invariant()
    def each_view_is_the_newest_snapshot_and_the_own_events_it_lacks(self) -> None:
        for router in self.routers:
            dispatcher = router.dispatcher
            now_ms = dispatcher.log_clock.now_ms(self.mono_ms)
            assert dispatcher.view.folded_into_base == 0
            for view in dispatcher.views(dispatcher.pools["p"], now_ms):
                as_of, _, base = router.newest.get(view.instance, (-1, 0, fresh(view.instance, T0, CONFIG)))
                for own in router.own:
                    counts = own.event.instance == view.instance and not isinstance(own.event, RouterLoad)
                    if counts and not self.is_included(router, own):
                        base = apply(base, own.event, own.at_ms, CONFIG)
                want = at(base, now_ms, CONFIG)
                have = at(view.state, now_ms, CONFIG)
                want.as_of = have.as_of = as_of
                assert encode(have) == encode(want), view.instance

    @invariant()
    def own_load_is_what_the_leases_say(self) -> None:
        for router in self.routers:
            dispatcher = router.dispatcher
            for view in dispatcher.views(dispatcher.pools["p"], dispatcher.log_clock.now_ms(self.mono_ms)):
                assert view.in_flight == sum(attempt.instance == view.instance for attempt in router.running)

    @invariant()
    def the_others_load_is_what_the_log_says_of_them(self) -> None:
        for router in self.routers:
            dispatcher = router.dispatcher
            now_ms = dispatcher.log_clock.now_ms(self.mono_ms)
            for view in dispatcher.views(dispatcher.pools["p"], now_ms):
                have = (
                    view.others_in_flight,
                    view.others_awaiting,
                    view.others_in_flight_tokens,
                    view.others_awaiting_tokens,
                )
                assert have in self.loads_of_others(router, view.instance, now_ms), view.instance

    def loads_of_others(self, router: Router, name: str, now_ms: int) -> list[tuple[int, ...]]:
        """What the view may say: the sums of the others, and with the own report if only the log knows its age."""
        as_of, taken_ms, state = router.newest.get(name, (-1, 0, None))
        if state is None or as_of < 0 or now_ms - taken_ms >= CONFIG.load_expire_ms:
            return [(0, 0, 0, 0)]
        tick_ms = state.tick * 100
        valid = {
            incarnation: (load.in_flight, load.awaiting, load.in_flight_tokens, load.awaiting_tokens)
            for incarnation, load in self.folds[as_of][name].loads.items()
            if tick_ms - load.at_ms < CONFIG.load_expire_ms
        }
        own = valid.pop(router.incarnation, None)
        others = tuple(map(sum, zip((0, 0, 0, 0), *valid.values(), strict=True)))
        told = [one for one in router.own if isinstance(one.event, RouterLoad) and one.event.instance == name]
        newest = [one for one in told if self.is_included(router, one)][-1:]
        if any((tick_ms - one.at_ms < CONFIG.load_expire_ms) != (own is not None) for one in newest):
            mixed = newest[0].event  # delayed on its way, and the view may not know its timestamp
            assert isinstance(mixed, RouterLoad)
            own = (mixed.in_flight, mixed.awaiting, mixed.in_flight_tokens, mixed.awaiting_tokens)
            less = tuple(max(0, other - mine) for other, mine in zip(others, own, strict=True))
            more = tuple(other + mine for other, mine in zip(others, own, strict=True))
            return [others, less, more]
        return [others]

    @invariant()
    def the_scorer_has_the_pure_fold_of_what_it_has_read(self) -> None:
        for scorer in filter(None, (self.scorer, self.zombie)):
            if scorer.position >= max((state.as_of for state in scorer.states.values()), default=-1) >= 0:
                want = self.folds[scorer.position]
                assert {n: encode(s) for n, s in scorer.states.items()} == {n: encode(s) for n, s in want.items()}

    def teardown(self) -> None:
        """Once everything has arrived, tails are empty and every state is the fold of the whole log."""
        if not self.log:
            return
        self.settle()
        self.each_view_is_the_newest_snapshot_and_the_own_events_it_lacks()
        self.the_scorer_has_the_pure_fold_of_what_it_has_read()
        for router in self.routers:
            assert [router.dispatcher.view.tail_events(name) for name in NAMES] == [0, 0]


TestExactness = Exactness.TestCase
TestExactness.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
