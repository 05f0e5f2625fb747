"""Every decision, redone from its record: the view is rebuilt, the policy run again on the recorded uniforms.

The view of a candidate is the newest snapshot that the router had consumed, plus the router's own batches that the
record names and the snapshot does not include. What is not in the log is taken from the record: own leases and the
other replicas' share of the load.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping

from evenload.audit.findings import Finding
from evenload.audit.snapshots import ConfigOf
from evenload.routing import POLICIES, InstanceView, ReplayedRng, Request, eligible
from evenload.schemas import Batch, Candidate, Decision, InstanceState, RouterLoad, SnapshotBatch, Tail
from evenload.scoring import apply, at, digest, score

OwnBatches = Mapping[tuple[int, int, int], tuple[int, Batch]]  # (incarnation, partition, seq) -> offset, batch


class Unverifiable(Exception):
    """Something that the record refers to is not in the log. The message is a short stable reason."""


class _Different(Exception):
    def __init__(self, reason: str, recorded: object, recomputed: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.recorded = recorded
        self.recomputed = recomputed


class SnapshotIndex:
    """The newest snapshot of an instance that a router had at an offset."""

    def __init__(self) -> None:
        self._offsets: dict[str, list[int]] = {}
        self._found: dict[str, list[tuple[int, int, InstanceState]]] = {}

    def add(self, offset: int, record: SnapshotBatch) -> None:
        """Take a record in; records of a partition come in order."""
        for one in record.snapshots:
            found = self._found.setdefault(one.state.instance, [])
            if found and (record.as_of, record.now_ms) < found[-1][:2]:
                continue  # readers keep the newer one
            found.append((record.as_of, record.now_ms, one.state))
            self._offsets.setdefault(one.state.instance, []).append(offset)

    def newest(self, instance: str, consumed: int) -> tuple[int, int, InstanceState]:
        """Return (as_of, now_ms, compact state).

        Raises:
            Unverifiable: there is none at or before `consumed`.
        """
        index = bisect_right(self._offsets.get(instance, []), consumed) - 1
        if index < 0:
            raise Unverifiable("no snapshot of a candidate had been read")
        return self._found[instance][index]


class DecisionAudit:
    """Redoes decisions.

    Args:
        own: telemetry batches of routers.
        partition_of: telemetry partition by instance id.
    """

    def __init__(
        self, snapshots: SnapshotIndex, own: OwnBatches, config_of: ConfigOf, partition_of: Callable[[str], int]
    ) -> None:
        self._snapshots = snapshots
        self._own = own
        self._config_of = config_of
        self._partition_of = partition_of

    def check(self, decision: Decision) -> Finding:
        """Return the verdict on one decision."""
        where = f"request {decision.request_id} attempt {decision.attempt} at router {decision.router}"
        try:
            self._redo(decision)
        except Unverifiable as error:
            return Finding("unverifiable", "decision", where, str(error))
        except _Different as error:
            return Finding("different", "decision", where, error.reason, repr(error.recorded), repr(error.recomputed))
        return Finding("verified", "decision", where)

    def _redo(self, decision: Decision) -> None:
        views = [self._view(decision, candidate) for candidate in decision.candidates]
        for view, candidate in zip(views, decision.candidates, strict=True):
            _same(f"score of {candidate.instance}", candidate.score, view.score)
        request = Request(
            prompt_tokens=decision.prompt_tokens,
            ordinal=decision.ordinal,
            prefix=decision.prefix,
            tried=tuple(decision.tried),
        )
        indices, excluded = eligible(views, request, decision.now_ms, decision.spill_over_ms)
        _same("exclusions", [candidate.excluded for candidate in decision.candidates], excluded)
        policy = POLICIES.get(decision.policy)
        if policy is None:
            raise Unverifiable(f"policy {decision.policy} is not known here")
        try:
            choice = policy().choose(
                [views[index] for index in indices], request, decision.now_ms, ReplayedRng(decision.draws)
            )
        except IndexError as error:
            raise _Different("number of draws", len(decision.draws), str(error)) from error
        for index, cost in zip(indices, choice.costs, strict=True):
            _same(f"cost of {views[index].instance}", decision.candidates[index].cost, cost)
        _same("winner", decision.winner, views[indices[choice.index]].instance)
        _same("reason", decision.reason, choice.reason)
        _same("probability", decision.probability, choice.probability)

    def _view(self, decision: Decision, candidate: Candidate) -> InstanceView:
        name = candidate.instance
        config = self._config_of(name)
        _same(f"config of {name}", decision.config_digest, digest(config))
        partition = self._partition_of(name)
        as_of, taken_ms, state = self._snapshots.newest(name, decision.offsets.get(partition, -1))
        pending_ms: int | None = None
        for tail in decision.tails:
            if tail.partition == partition:
                state, pending_ms = self._with_tail(decision, tail, state, as_of)
        state = at(state, decision.now_ms, config)
        return InstanceView(
            instance=name,
            state=state,
            config=config,
            score=score(state, config),
            in_flight=candidate.in_flight,
            awaiting=candidate.awaiting,
            awaiting_tokens=candidate.awaiting_tokens,
            others_in_flight=candidate.others_in_flight,
            in_flight_tokens=candidate.in_flight_tokens,
            others_awaiting=candidate.others_awaiting,
            others_in_flight_tokens=candidate.others_in_flight_tokens,
            others_awaiting_tokens=candidate.others_awaiting_tokens,
            cached_tokens=candidate.cached_tokens,
            snapshot_ms=taken_ms,
            pending_ms=pending_ms,
            weight=candidate.weight,
            priority=candidate.priority,
        )

    def _with_tail(
        self, decision: Decision, tail: Tail, state: InstanceState, as_of: int
    ) -> tuple[InstanceState, int | None]:
        """Return the state with own events on top, and when the first of them was observed."""
        config, first_ms = self._config_of(state.instance), None
        for seq in range(tail.first, tail.last + 1):
            found = self._own.get((decision.incarnation, tail.partition, seq))
            if found is None:
                raise Unverifiable("the router's own batch never reached the log")
            offset, batch = found
            if offset <= as_of:
                continue
            events = batch.events[: tail.last_events] if seq == tail.last else batch.events
            for event in events:
                if event.instance == state.instance and not isinstance(event, RouterLoad):
                    observed_ms = batch.view_ms + event.at
                    first_ms = observed_ms if first_ms is None else first_ms
                    state = apply(state, event, observed_ms, config)
        return state, first_ms


def _same(what: str, recorded: object, recomputed: object) -> None:
    if recorded != recomputed:
        raise _Different(f"{what} differs", recorded, recomputed)
