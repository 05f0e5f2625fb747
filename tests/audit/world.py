"""A small fleet's log, made by the production code in memory: routers' dispatchers, scorer core, log."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest.mock import Mock

from evenload.audit.decisions import DecisionAudit, SnapshotIndex
from evenload.audit.findings import Report
from evenload.audit.snapshots import PartitionAudit
from evenload.bus.lane import Lane
from evenload.router.beginnings import Beginnings
from evenload.router.decision import Decided
from evenload.router.dispatcher import Attempt, Dispatcher
from evenload.router.homes import Homes
from evenload.router.limits import Limits
from evenload.router.pool import Place, Pool
from evenload.router.ports import Ask
from evenload.routing import POLICIES, FleetView, LogClock
from evenload.schemas import (
    Batch,
    Decision,
    Event,
    InstanceState,
    Outcome,
    SnapshotBatch,
    decode_batch,
    decode_decision,
    encode,
)
from evenload.schemas.telemetry import OutcomeKind
from evenload.scoring import ScoringConfig, digest, fold, snapshot

CONFIG = ScoringConfig(evidence="censored")
NAMES = ("a", "b", "c")
T0 = 1_700_000_000_000
INCARNATION = 77


class _Placed(NamedTuple):
    seq: int
    at_ms: int


class _Nobody:
    def chosen(self, pool: str, instance: str, reason: str) -> None: ...
    def first_token(self, pool: str, instance: str, ttft_ms: float) -> None: ...
    def ended(self, pool: str, model: str, instance: str, outcome: Outcome) -> None: ...
    def forget(self, pool: str, instance: str) -> None: ...


@dataclass
class _Emitter:
    """Batches as the real one does, onto an in-memory log of one partition."""

    incarnation: int
    lane: Lane = field(default_factory=lambda: Lane(0, 20))

    def add(self, event: Event, view_ms: int) -> _Placed:
        batch, _, at = self.lane.add(event, 0.0, view_ms)
        return _Placed(batch.seq, batch.view_ms + at)


class World:
    """One router, one scorer, one partition; `run` makes traffic and keeps what the topics would hold."""

    def __init__(
        self,
        policy: str,
        seed: int,
        places: Mapping[str, Place] | None = None,
        spill_over_ms: float | None = None,
        *,
        conversations: int = 0,
    ) -> None:
        self.conversations = conversations

        self.rng = random.Random(seed)
        self.mono_ms = self.skew_ms = 0.0
        self.emitter = _Emitter(INCARNATION)
        self.telemetry: list[tuple[int, int, bytes]] = []
        self.snapshots: list[tuple[int, SnapshotBatch]] = []
        self.records: list[Decided] = []
        self.decisions: list[Decision] = []
        self.states: dict[str, InstanceState] = {}
        view = FleetView(dict.fromkeys(NAMES, CONFIG), dict.fromkeys(NAMES, 0), INCARNATION, T0)
        pool = Pool("p", ("m",), POLICIES[policy](), NAMES, digest(CONFIG), Limits())
        pool.places, pool.spill_over_ms = places or {}, spill_over_ms
        pool.homes = Homes(Beginnings(b"key"), len(NAMES), certain=True) if conversations else None
        self.dispatcher = Dispatcher(
            router="r",
            pools={"p": pool},
            upstreams={name: Mock(silent=lambda *_: []) for name in NAMES},  # nothing is asked
            view=view,
            log_clock=LogClock(T0, 0.0),
            emitter=self.emitter,
            send_decision=self.records.append,
            watch=_Nobody(),
            rng=random.Random(seed + 1),
            clock=lambda: self.mono_ms,
            code_digest="c",
        )
        self.running: list[Attempt] = []

    def run(self, steps: int) -> None:
        """Publish all instances once, then mix requests, telemetry, scoring and snapshots at random."""
        for name in NAMES:
            self.dispatcher.tell(Outcome(instance=name, kind="ok"))
        self.deliver()
        self.publish(NAMES)
        for number in range(steps):
            self.mono_ms += self.rng.uniform(0.0, 120.0)
            self.skew_ms = self.rng.choice([0.0, 0.0, 0.0, -40.0, 250.0, -1500.0])  # late snapshots, a clock that jumps
            act = self.rng.random()
            if act < 0.45:
                tokens = self.rng.randrange(1, 6000)
                begins = self.rng.randrange(1, self.conversations + 1) if self.conversations else 0
                ask = Ask(f"req-{number}", "m", tokens, True, "chat/completions", beginning=begins)
                self.running.append(self.dispatcher.choose(ask, (), 0))
            elif act < 0.7 and self.running:
                self.end(self.running.pop(self.rng.randrange(len(self.running))))
            elif act < 0.8:
                self.dispatcher.tick()
            elif act < 0.9:
                self.deliver()
            else:
                self.publish(self.rng.sample(NAMES, self.rng.randrange(1, 4)))
        self.deliver()
        # Made only now: whatever has changed since the choices must not show.
        self.decisions += [decode_decision(encode(decided.record())) for decided in self.records]
        self.records.clear()

    def end(self, attempt: Attempt) -> None:
        kinds: tuple[OutcomeKind, ...] = ("ok", "ok", "ok", "http_error", "saturated", "client_gone")
        kind = self.rng.choice(kinds)
        if kind == "ok":
            attempt.first_token(self.rng.uniform(50, 3000))
        attempt.finish(kind, status=200, cause="", retry_after_ms=None, ttft_ms=None, duration_ms=1.0, output_tokens=1)

    def deliver(self) -> None:
        """Close the open batch; everything closed reaches the log and the scorer."""
        self.emitter.lane.expire()
        group = self.emitter.lane.group()
        for pending in group:
            offset, now = len(self.telemetry), T0 + int(self.mono_ms) + 30
            data = pending.encoded("r", INCARNATION, 0.0)
            self.telemetry.append((offset, now, data))
            self.states.update(fold(self.states, decode_batch(data), offset, now, lambda _: CONFIG))
        self.emitter.lane.acknowledge(len(group))

    def publish(self, names: "tuple[str, ...] | list[str]") -> None:
        now = T0 + int(self.mono_ms + self.skew_ms) + 40
        record = SnapshotBatch(
            v=1,
            partition=0,
            as_of=len(self.telemetry) - 1,
            now_ms=now,
            linger_ms=20,
            sequences={INCARNATION: decode_batch(self.telemetry[-1][2]).seq},
            snapshots=[snapshot(self.states[name], now, CONFIG) for name in names],
        )
        self.dispatcher.take_snapshots(len(self.snapshots), record)
        self.snapshots.append((len(self.snapshots), record))


def audit(world: World, config: ScoringConfig = CONFIG) -> Report:
    """Audit what a world's topics hold."""
    report = Report()
    partition = PartitionAudit(0, lambda _: config)
    for finding in partition.findings(world.telemetry, world.snapshots):
        report.add(finding)
    report.gaps += partition.gaps
    index = SnapshotIndex()
    own: dict[tuple[int, int, int], tuple[int, Batch]] = {}
    for offset, record in world.snapshots:
        index.add(offset, record)
    for offset, _, data in world.telemetry:
        try:
            batch: Batch = decode_batch(data)
        except ValueError:
            continue
        own.setdefault((batch.incarnation, 0, batch.seq), (offset, batch))
    decisions = DecisionAudit(index, own, lambda _: config, lambda _: 0)
    for decision in world.decisions:
        report.add(decisions.check(decision))
    return report
