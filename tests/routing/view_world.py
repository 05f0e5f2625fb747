"""A router process without network and Kafka, for tests of its view: the production dispatcher, view, leases, lanes."""

import random
from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import Mock

from evenload.bus.lane import Lane
from evenload.router.dispatcher import Attempt, Dispatcher
from evenload.router.limits import Limits
from evenload.router.pool import Pool
from evenload.routing import POLICIES, FleetView, LogClock
from evenload.schemas import Event, InstanceState, Outcome, SnapshotBatch
from evenload.scoring import ScoringConfig, digest

CONFIG = ScoringConfig(evidence="censored")
NAMES = ("a", "b")
T0 = 1_700_000_000_000


class Own(NamedTuple):
    """An own event as the view was told of it."""

    event: Event
    seq: int
    at_ms: int


class Placed(NamedTuple):
    seq: int
    at_ms: int


class Nobody:
    """Nobody watches the dispatcher."""

    def chosen(self, pool: str, instance: str, reason: str) -> None: ...
    def first_token(self, pool: str, instance: str, ttft_ms: float) -> None: ...
    def ended(self, pool: str, model: str, instance: str, outcome: Outcome) -> None: ...
    def forget(self, pool: str, instance: str) -> None: ...


class Router:
    """One router process: its dispatcher, the batches on their way, and what the test remembers of both.

    It is its dispatcher's emitter.
    """

    def __init__(self, incarnation: int, clock: Callable[[], float], first_record: int) -> None:
        self.incarnation = incarnation
        self.lane = Lane(0, 20)
        self.own: list[Own] = []
        self.acks: list[tuple[int, int, int]] = []  # seq, offset, timestamp: told to the view later, or never
        self.next_record = first_record
        self.running: list[Attempt] = []
        self.newest: dict[str, tuple[int, int, InstanceState]] = {}
        pool = Pool("p", ("m",), POLICIES["peak-ewma-decay"](), NAMES, digest(CONFIG), Limits())
        self.dispatcher = Dispatcher(
            router="r",
            pools={"p": pool},
            upstreams={name: Mock(silent=lambda *_: []) for name in NAMES},  # nothing is asked
            view=FleetView(dict.fromkeys(NAMES, CONFIG), dict.fromkeys(NAMES, 0), incarnation, T0),
            log_clock=LogClock(T0, 0.0),
            emitter=self,
            send_decision=lambda *_: None,
            watch=Nobody(),
            rng=random.Random(incarnation),
            clock=clock,
            code_digest="c",
        )

    def add(self, event: Event, view_ms: int) -> Placed:
        """Place an event as the emitter does."""
        batch, _, after_ms = self.lane.add(event, self.dispatcher.clock() / 1000, view_ms)
        own = Own(event, batch.seq, batch.view_ms + after_ms)
        self.own.append(own)
        return Placed(own.seq, own.at_ms)

    def take(self, offset: int, batch: SnapshotBatch) -> None:
        """Read a snapshots record, and remember which was the newest of each instance."""
        self.dispatcher.take_snapshots(offset, batch)
        for one in batch.snapshots:
            name = one.state.instance
            if (batch.as_of, batch.now_ms) >= self.newest.get(name, (-1, -1))[:2]:
                self.newest[name] = (batch.as_of, batch.now_ms, one.state)
