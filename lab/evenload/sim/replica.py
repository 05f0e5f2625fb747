"""One router replica: the production view, leases, log clock, exclusions and policy, fed in virtual time.

It repeats the dispatcher's sequence (read the view, exclude, choose, book; tell what happened and observe it oneself),
which lives in a shell and cannot be imported here. Decision records are left out.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

from evenload.routing import FleetView, Lease, LeaseBook, LogClock, Policy, Request, eligible
from evenload.routing.backlog import expect, explained_ms
from evenload.routing.policy import InstanceView
from evenload.routing.prefixes import PrefixIndex
from evenload.schemas import Event, FirstToken, Outcome, Overdue, SnapshotBatch
from evenload.schemas.telemetry import OutcomeKind
from evenload.scoring import ScoringConfig
from evenload.sim.jobs import HASH_TOKENS, Job
from evenload.sim.scenario import Arm
from evenload.sim.telemetry import LOG_START_MS, Lane, Path

TICK_MS = 50.0


class Chooser(Protocol):
    """Who may look behind the curtain: an oracle that chooses by the truth."""

    def choose(self, job: Job, indices: Sequence[int], now_ms: float) -> int:
        """Return the index of the instance."""
        ...


class Replica:
    """One router.

    Args:
        names: instance ids in order; `partitions` has the telemetry partition of each.
        oracle: chooses instead of the policy.
    """

    def __init__(
        self,
        number: int,
        path: Path,
        *,
        names: Sequence[str],
        partitions: Mapping[str, int],
        config: ScoringConfig,
        policy: Policy,
        rng: Random,
        arm: Arm = "equal",
        oracle: Chooser | None = None,
        hashes_max: int = 0,
    ) -> None:
        self.number = number
        self._path = path
        self._timeline = path.timeline
        self._names = list(names)
        self._index = {name: index for index, name in enumerate(names)}
        self._rng = rng
        self._arm = arm
        self.policy = policy
        self._oracle = oracle
        self._lanes = _lanes(path, names, partitions, number + 1)
        self.view = FleetView(dict.fromkeys(names, config), partitions, number + 1, LOG_START_MS)
        self.book = LeaseBook()
        self._clock = LogClock(LOG_START_MS, 0.0)
        self._ordinal = number  # replicas that count from 0 alike would go round in step
        self.prefixes = PrefixIndex(hashes_max) if hashes_max else None
        self.choices = self.probes = 0

    def __repr__(self) -> str:
        return f"Replica({self.number}, in_flight={self.book.in_flight})"

    def choose(self, job: Job, tried: tuple[str, ...]) -> tuple[int, Lease, bool]:
        """Pick an instance and book it; returns its index, the lease, and whether this is a probe."""
        mono_ms = self._timeline.now_ms
        now_ms = self._clock.now_ms(mono_ms)
        read, counts = self.view.read, self.book.counts
        views = [read(name, counts(name), now_ms) for name in self._names]
        if self.prefixes is not None and job.hashes:
            self._note_cached(views, job)
        request = Request(prompt_tokens=job.prompt_tokens, ordinal=self._ordinal, prefix=_prefix_of(job), tried=tried)
        indices = list(range(len(views))) if self._arm == "bare" else eligible(views, request, now_ms)[0]
        if self._oracle is not None:
            index, probe = self._oracle.choose(job, indices, mono_ms), False
        else:
            candidates = views if len(indices) == len(views) else [views[index] for index in indices]
            choice = self.policy.choose(candidates, request, now_ms, self._rng)
            index, probe = indices[choice.index], choice.reason == "probe"
        self._ordinal += not tried
        self.choices += 1
        self.probes += probe
        if self.prefixes is not None:
            self.prefixes.note(self._names[index], job.hashes)
        expected = expect(views[index], request, now_ms)
        return index, self.book.book(self._names[index], job.prompt_tokens, mono_ms, expected), probe

    def _note_cached(self, views: list[InstanceView], job: Job) -> None:
        assert self.prefixes is not None
        for view in views:
            view.cached_tokens = self.prefixes.matched(view.instance, job.hashes) * HASH_TOKENS

    def tell(self, event: Event) -> None:
        """Send an own event and take it into the own view."""
        now_ms = self._clock.now_ms(self._timeline.now_ms)
        self.view.observe(event, self._lanes[event.instance].add(event), now_ms)

    def first_token(self, lease: Lease, ttft_ms: float) -> None:
        """Note the first token of an attempt."""
        predicted_ms = self._explained_ms(lease)
        if lease.first_token():
            self.tell(
                FirstToken(
                    instance=lease.instance,
                    ttft_ms=ttft_ms,
                    prompt_tokens=lease.prompt_tokens,
                    predicted_ms=predicted_ms,
                    work=lease.expected.work,
                )
            )

    def _explained_ms(self, lease: Lease) -> float | None:
        name = lease.instance
        now_ms = self._clock.now_ms(self._timeline.now_ms)
        return explained_ms(self.view.read(name, self.book.counts(name), now_ms), lease.expected.ttft_ms)

    def finish(
        self, lease: Lease, kind: OutcomeKind, *, cause: str = "", ttft_ms: float | None = None, tokens: int = 0
    ) -> None:
        """Give a lease back and tell how the attempt ended."""
        if lease.release():
            self.tell(
                Outcome(
                    instance=lease.instance,
                    kind=kind,
                    cause=cause,
                    ttft_ms=ttft_ms,
                    duration_ms=self._timeline.now_ms - lease.started_ms,
                    prompt_tokens=lease.prompt_tokens,
                    output_tokens=tokens,
                )
            )

    def tick(self, _: object = None) -> None:
        """Tell of requests that still wait and of loads; every 50 ms."""
        mono_ms = self._timeline.now_ms
        overdue = [
            Overdue(
                instance=lease.instance,
                age_ms=age_ms,
                prompt_tokens=lease.prompt_tokens,
                predicted_ms=self._explained_ms(lease),
            )
            for lease, age_ms in self.book.overdue(mono_ms)
        ]
        for event in overdue:
            self.tell(event)
        for report in self.book.reports(mono_ms):
            self.tell(report)
        self._timeline.at(mono_ms + TICK_MS, self.tick)

    def take(self, offset: int, batch: SnapshotBatch) -> None:
        """Take in a snapshots record."""
        mono_ms = self._timeline.now_ms
        self._clock.anchor(batch.now_ms, mono_ms)
        self.view.take(offset, batch, mono_ms)


def _prefix_of(job: Job) -> int:
    """Return the hash of the first two blocks, never 0: the first alone may be a system prompt that all share."""
    return 1 + job.hashes[1 if len(job.hashes) > 1 else 0] if job.hashes else 0


def _lanes(path: Path, names: Sequence[str], partitions: Mapping[str, int], incarnation: int) -> dict[str, Lane]:
    by_partition = {number: Lane(path, path.logs[number], incarnation) for number in sorted(set(partitions.values()))}
    return {name: by_partition[partitions[name]] for name in names}


class Poller:
    """The collector: one producer that polls every instance and tells of membership."""

    def __init__(self, path: Path, names: Sequence[str], partitions: Mapping[str, int]) -> None:
        self._lanes = _lanes(path, names, partitions, 1_000_000)

    def tell(self, event: Event) -> None:
        """Send an event."""
        self._lanes[event.instance].add(event)
