"""Choosing, booking and telling: the synchronous heart of the router's shell.

`choose` reads the view, lets the pool's policy pick, books a lease and keeps what the decision record is made of, in
one step without an await, so that a thousand concurrent choices see each other. What an attempt then experiences goes
to the emitter and, in the same step, into the router's own view. Telemetry that cannot be sent is counted, never
raised.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from evenload.router import failing
from evenload.router.decision import Decided
from evenload.router.gone import Gone
from evenload.router.lingering import Lingering
from evenload.router.pool import Pool
from evenload.router.ports import Ask, NoInstance
from evenload.router.upstream import Upstream
from evenload.routing import FleetView, LeaseBook, LogClock, RecordedRng, Request, Rng, eligible
from evenload.routing.backlog import expect, explained_ms
from evenload.routing.exclusion import is_stale
from evenload.routing.leases import Lease
from evenload.routing.policy import InstanceView
from evenload.schemas import Event, FirstToken, Outcome, Overdue, SnapshotBatch
from evenload.schemas.telemetry import OutcomeKind
from evenload.scoring import ScoringConfig
from evenload.scoring.cooling import cooling_left_ms

REFUSED = "refused"  # cause of a `not_ready` of the collector
UNSENT = 2**62  # the batch number of an event that the full emitter did not take: no snapshot will ever include it
AHEAD_EVERY_MS = 2.0
OTHER_MODEL = "*"  # the label of all models that a pool takes without naming them
MODEL_CHARACTERS_MAX = 255  # what a decision record can hold; a pool for any model takes the client's word


class Emitting(Protocol):
    """What the dispatcher needs of the emitter."""

    incarnation: int

    def add(self, event: Event, view_ms: int) -> Any:
        """Place the event in the open batch of its partition; None when it is full."""
        ...


class Watching(Protocol):
    """What the dispatcher tells the metrics."""

    def chosen(self, pool: str, instance: str, reason: str) -> None:
        """One more choice."""
        ...

    def first_token(self, pool: str, instance: str, ttft_ms: float) -> None:
        """One more first token."""
        ...

    def ended(self, pool: str, model: str, instance: str, outcome: Outcome) -> None:
        """One more attempt ended."""
        ...

    def forget(self, pool: str, instance: str) -> None:
        """The instance is no longer in the settings."""
        ...


@dataclass(slots=True)
class Dispatcher:
    """See the module docstring.

    Args:
        router: configured name.
        clock: monotonic milliseconds.
        send_decision: takes what its record is made of; bounded, never blocks, never raises.
    """

    router: str
    pools: Mapping[str, Pool]
    upstreams: Mapping[str, Upstream]
    view: FleetView
    log_clock: LogClock
    emitter: Emitting
    send_decision: Callable[[Decided], object]
    watch: Watching
    rng: Rng
    clock: Callable[[], float]
    code_digest: str
    book: LeaseBook = field(default_factory=LeaseBook)
    gone: Gone = field(default_factory=Gone)
    lingering: Lingering = field(default_factory=Lingering)
    _by_model: dict[str, Pool] = field(default_factory=dict)
    _retired: dict[str, str] = field(default_factory=dict)  # instances that left the settings -> their pool
    _ahead_ms: float = -math.inf  # when an event was last folded as it was told

    def __post_init__(self) -> None:
        self._index()

    def _index(self) -> None:
        self._by_model = {model: pool for pool in self.pools.values() for model in pool.models}

    def service(self, model: str) -> Pool | None:
        """Return the pool that serves a model, or the one that takes any."""
        return self._by_model.get(model) or self._by_model.get("*")

    def label_of(self, model: str) -> str:
        """Return the name by which metrics know a model: its own if it is configured, else one for all others."""
        return model if model in self._by_model else OTHER_MODEL

    def models(self) -> list[str]:
        """Return the names that clients can ask for."""
        return sorted(model for model in self._by_model if model != "*")

    def views(self, pool: Pool, now_ms: int) -> list[InstanceView]:
        """Return the pool's instances as this router believes them to be."""
        views = [self.view.read(name, self.book.counts(name), now_ms) for name in pool.instances]
        if pool.places:
            for view in views:
                place = pool.places.get(view.instance)
                if place is not None:
                    view.weight, view.priority = place
        return views

    def choose(self, request: Ask, tried: tuple[str, ...], attempt: int) -> "Attempt":
        """Pick an instance and book it.

        Raises:
            NoInstance: no pool serves the model (404), every instance of it has left (503), or is a provider whose
                quota is used up for now (429).
        """
        pool = self.service(request.model) if len(request.model) <= MODEL_CHARACTERS_MAX else None
        if pool is None:
            known = ", ".join(self.models()) or "none"
            raise NoInstance(404, "model_not_found", f"The model is not served here. Ask for one of: {known}.")
        mono_ms = self.clock()
        now_ms = self.log_clock.now_ms(mono_ms)
        views = self.views(pool, now_ms)
        # A retry goes to whoever is best: its home may be what has just failed.
        prefix = 0 if attempt or pool.homes is None else pool.homes.prefix_for(request.beginning, views)
        asked = Request(prompt_tokens=request.prompt_tokens, ordinal=pool.ordinal, prefix=prefix, tried=tried)
        indices, excluded = eligible(views, asked, now_ms, pool.spill_over_ms)
        if not indices:
            message = "Every instance that serves this model has left the fleet; ask again later."
            raise NoInstance(503, "no_instance", message, 1)
        candidates = views if len(indices) == len(views) else [views[index] for index in indices]
        if candidates[0].state.cooling_cause == "quota":
            _raise_if_cooling(candidates, now_ms)
        rng = RecordedRng(self.rng)
        choice = pool.policy.choose(candidates, asked, now_ms, rng)
        winner = candidates[choice.index].instance
        decided = Decided(
            ask=request,
            attempt=attempt,
            pool=pool,
            request=asked,
            now_ms=now_ms,
            views=views,
            excluded=excluded,
            indices=indices,
            choice=choice,
            draws=rng.draws,
            offsets=self.view.offsets(pool.instances),
            tails=self.view.tails(pool.instances),
            router=self.router,
            incarnation=self.emitter.incarnation,
            code_digest=self.code_digest,
        )
        self.send_decision(decided)
        if attempt == 0:
            pool.retries.earn()
        pool.ordinal += attempt == 0  # a retry that took a turn would always take it from the failing one's neighbour
        expected = expect(candidates[choice.index], asked, now_ms)
        lease = self.book.book(winner, request.prompt_tokens, mono_ms, expected)
        lease.generation = candidates[choice.index].state.generation
        self.watch.chosen(pool.name, winner, choice.reason)
        return Attempt(self, pool, lease, request, attempt)

    def may_retry(self, model: str) -> bool:
        """Take one retry from the budget of the pool that serves a model; False if it is used up."""
        pool = self.service(model)
        return pool is None or pool.retries.take(self.clock())

    def retry_after_s(self, model: str) -> int | None:
        """Return when the first instance of the model has cooled down, rounded up; None if one does not cool."""
        pool = self.service(model)
        if pool is None:
            return None
        now_ms = self.log_clock.now_ms(self.clock())
        return _first_cooled_s(self.views(pool, now_ms), now_ms)

    def tell(self, event: Event) -> None:
        """Send an own event and take it into the own view.

        It is folded at once, so that no choice has to wait for it; under load only now and then, for several at
        the next choice cost little more than one.
        """
        mono_ms = self.clock()
        now_ms = self.log_clock.now_ms(mono_ms)
        placed = self.emitter.add(event, now_ms)
        if placed is None:
            self.view.observe(event, UNSENT, now_ms)
        else:
            self.view.observe(event, placed.seq, placed.at_ms)
        if mono_ms - self._ahead_ms >= AHEAD_EVERY_MS:
            self._ahead_ms = mono_ms
            self.view.settle(event.instance, now_ms)

    def reconfigure(
        self,
        pools: Mapping[str, Pool],
        upstreams: Mapping[str, Upstream],
        configs: Mapping[str, ScoringConfig],
        partitions: Mapping[str, int],
    ) -> None:
        """Take over new pools; those that have kept their names go on from what they were.

        Instances that are in none of them get no more requests, and are forgotten when their last one has ended.

        Args:
            pools: by name.
            upstreams: by instance; may hold some of those in use.
            configs: scoring config by instance.
            partitions: of telemetry, by instance.
        """
        for name, pool in pools.items():
            if name in self.pools:
                pool.inherit(self.pools[name])
        kept = {(pool.name, name) for pool in pools.values() for name in pool.instances}
        for pool in self.pools.values():
            for name in pool.instances:
                if name not in upstreams:
                    self._retired[name] = pool.name
                elif (pool.name, name) not in kept:
                    self.watch.forget(pool.name, name)  # it serves another pool now
        self._retired = {name: pool for name, pool in self._retired.items() if name not in upstreams}
        for name, upstream in self.upstreams.items():
            if upstreams.get(name) is not upstream:
                upstream.close()
        self.pools, self.upstreams = pools, upstreams
        self.view.follow(configs, partitions, self.log_clock.now_ms(self.clock()))
        self._index()

    def _forget_retired(self) -> None:
        for name, pool in list(self._retired.items()):
            if self.book.forget(name):
                self.view.forget(name)
                self.watch.forget(pool, name)
                del self._retired[name]

    def tick(self) -> None:
        """Tell of requests that still wait for their first token, and of loads; call every 50 ms or so.

        What waits for an instance that is gone is given up.
        """
        mono_ms = self.clock()
        self.lingering.release(mono_ms)
        # All are made before the first is told: each one told makes the view fold again at the next look.
        overdue = [
            Overdue(
                instance=lease.instance,
                gen=lease.generation,
                age_ms=age_ms,
                prompt_tokens=lease.prompt_tokens,
                predicted_ms=self.explained_ms(lease),
            )
            for lease, age_ms in self.book.overdue(mono_ms)
        ]
        for event in overdue:
            self.tell(event)
        for report in self.book.reports(mono_ms):
            generation = self.view.generation(report.instance)
            self.tell(replace(report, gen=generation) if generation else report)
        self.gone.look(mono_ms, self.upstreams, self._refuses)
        if self._retired:
            self._forget_retired()

    def _refuses(self, name: str) -> bool:
        """Whether the collector says, and not only said once, that the instance's port is closed."""
        now_ms = self.log_clock.now_ms(self.clock())
        view = self.view.read(name, self.book.counts(name), now_ms)
        return not view.state.ready and view.state.cause == REFUSED and not is_stale(view, now_ms)

    def explained_ms(self, lease: Lease) -> float | None:
        """Return what a waiting request could have been expected to take, by what is known now."""
        now_ms = self.log_clock.now_ms(self.clock())
        name = lease.instance
        return explained_ms(self.view.read(name, self.book.counts(name), now_ms), lease.expected.ttft_ms)

    def take_snapshots(self, offset: int, batch: SnapshotBatch) -> None:
        """Take in a snapshots record."""
        mono_ms = self.clock()
        self.log_clock.anchor(batch.now_ms, mono_ms)
        self.view.take(offset, batch, mono_ms)
        now_ms = self.log_clock.now_ms(mono_ms)
        for snapshot in batch.snapshots:
            self.view.settle(snapshot.state.instance, now_ms)


def _raise_if_cooling(views: Sequence[InstanceView], now_ms: int) -> None:
    """Refuse for providers that all have said that the account's quota is used up: to ask them is known to fail.

    An engine that was busy is asked all the same when nobody else is there: it may have room by now.
    """
    if any(view.state.cooling_cause != "quota" for view in views):
        return
    wait_s = _first_cooled_s(views, now_ms)
    if wait_s is not None:
        message = f"The provider's quota for this service is used up; ask again in {wait_s} s."
        raise NoInstance(429, "provider_quota", message, wait_s)


def _first_cooled_s(views: Sequence[InstanceView], now_ms: int) -> int | None:
    left_ms = min((cooling_left_ms(view.state, now_ms) for view in views if view.state.left_ms is None), default=0)
    return math.ceil(left_ms / 1000) if left_ms > 0 else None


class Attempt:
    """One attempt under way: a lease, and what it tells the fleet."""

    __slots__ = (
        "_beginning",
        "_dispatcher",
        "_finished",
        "_homes",
        "_lease",
        "_model",
        "_pool",
        "_request_id",
        "attempt",
        "expected_ms",
        "instance",
        "upstream",
    )

    def __init__(self, dispatcher: Dispatcher, pool: Pool, lease: Lease, ask: Ask, attempt: int) -> None:
        self._dispatcher = dispatcher
        self._model = dispatcher.label_of(ask.model)
        self._pool = pool
        self._lease = lease
        self._finished = False
        self._request_id = ask.request_id
        self._beginning = ask.beginning
        self._homes = pool.homes if ask.beginning else None  # the pool's may change while this is under way
        if self._homes is not None:
            self._homes.began(ask.beginning)
        self.attempt = attempt
        self.instance = lease.instance
        self.expected_ms = lease.expected.ttft_ms
        self.upstream = dispatcher.upstreams[lease.instance]

    def first_token(self, ttft_ms: float) -> None:
        """Note the first content token, `ttft_ms` after the attempt was sent."""
        dispatcher, name, lease = self._dispatcher, self.instance, self._lease
        predicted_ms = dispatcher.explained_ms(lease)
        if not lease.first_token():
            return
        dispatcher.tell(
            FirstToken(
                instance=name,
                gen=lease.generation,
                ttft_ms=ttft_ms,
                prompt_tokens=lease.prompt_tokens,
                predicted_ms=predicted_ms,
                work=lease.expected.work,
            )
        )
        dispatcher.watch.first_token(self._pool.name, name, ttft_ms)

    def finish(
        self,
        kind: OutcomeKind,
        *,
        status: int,
        cause: str,
        retry_after_ms: float | None,
        ttft_ms: float | None,
        duration_ms: float,
        output_tokens: int,
    ) -> None:
        """Give the lease back and tell how it ended; only the first call counts."""
        if self._finished:
            return
        self._finished = True
        dispatcher = self._dispatcher
        if kind == "rejected" and status:  # one without was not sent
            dispatcher.lingering.keep(self._lease, dispatcher.clock(), self._pool.usual_ms - duration_ms)
        else:
            self._lease.release()
            if kind == "ok":
                self._pool.learn_duration(duration_ms)
        if self._homes is not None:
            self._homes.ended(self._beginning)
        outcome = Outcome(
            instance=self.instance,
            gen=self._lease.generation,
            kind=kind,
            status=status,
            cause=cause[:64],
            retry_after_ms=retry_after_ms,
            ttft_ms=ttft_ms,
            duration_ms=duration_ms,
            prompt_tokens=self._lease.prompt_tokens,
            output_tokens=output_tokens,
            request_id=self._request_id,
            attempt=self.attempt,
        )
        dispatcher.tell(outcome)
        dispatcher.watch.ended(self._pool.name, self._model, self.instance, outcome)
        if kind != "ok":
            failing.say(self._pool.name, outcome)
