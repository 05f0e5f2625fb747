"""A fleet in virtual time: arrivals, router replicas, instances, the telemetry path, faults, clients who leave.

Start at `simulate`. One user request is a `_User`; it makes attempts as the production router does: another instance
when one refuses, fails or breaks before the first token; the same one again only after a back-off; at most
`attempts_max`. The network takes no time.
"""

from array import array
from collections.abc import Sequence
from random import Random
from typing import Final

from msgspec import Struct

from evenload.routing import Lease
from evenload.schemas import Membership
from evenload.schemas.telemetry import OutcomeKind
from evenload.scoring import ScoringConfig
from evenload.sim.instance import ANSWER_MS, FAIL_MS, Answer, Instance
from evenload.sim.jobs import HASH_TOKENS, Job
from evenload.sim.lookahead import healthy_ttft_ms
from evenload.sim.oracle import Oracle
from evenload.sim.policies import ORACLE, make_policy, policy_name
from evenload.sim.replica import TICK_MS, Poller, Replica
from evenload.sim.results import FAILED, LOST, OK, REJECTED, TIMED_OUT, Result
from evenload.sim.scenario import Case, Fault
from evenload.sim.sequence import Emission, EmissionKind, SimRequest
from evenload.sim.telemetry import Path
from evenload.sim.timeline import Timeline

PUBLISHED: Final = frozenset({"health", "peak-ewma"})  # policies that read the published EWMA, as in production
BACK_OFF_MS, BACK_OFF_MS_MAX = 100.0, 1000.0
CLIENT_WAIT_MS = 1000.0
OVERLOAD_RESTART_MS = 30_000.0
SAMPLE_MS = 1000.0
DRAIN_MS_MAX = 900_000.0
RAMP_STEPS = 10

_KIND: dict[Answer, OutcomeKind] = {"refused": "connect_error", "saturated": "saturated", "failed": "http_error"}


class _User(Struct, eq=False):
    job: Job
    replica: Replica
    arrived_ms: float
    tries_left: int
    tried: list[str] = []
    attempt: "_Attempt | None" = None
    done: bool = False


class _Attempt(Struct, eq=False):
    id: str
    user: _User
    index: int
    lease: Lease
    sent_ms: float
    ttft_ms: float | None = None


def simulate(case: Case, jobs: Sequence[Job]) -> Result:
    """Run a case; the same case, jobs and commit give the same result, bit for bit.

    Raises:
        AssertionError: something that must hold did not. Every error has a note with the command that replays it.
    """
    try:
        return Simulation(case, jobs).run()
    except Exception as error:
        error.add_note(f"replay: {case.command}")
        raise


class Simulation:
    """One run. Everything that happens is a method called by the timeline."""

    def __init__(self, case: Case, jobs: Sequence[Job]) -> None:
        scenario = self.scenario = case.scenario
        self.case = case
        self.jobs = jobs
        self.timeline = Timeline()
        self.instances = [
            Instance(index, spec, _rng(case, f"instance {index}")) for index, spec in enumerate(scenario.fleet)
        ]
        names = [instance.name for instance in self.instances]
        partitions = {name: index % scenario.telemetry.partitions for index, name in enumerate(names)}
        config = ScoringConfig(evidence="published" if policy_name(case.policy) in PUBLISHED else "censored")
        self.path = Path(self.timeline, scenario.telemetry, lambda _: config, _rng(case, "telemetry"))
        slo = scenario.slo if scenario.aim == "goodput" else None
        oracle = Oracle(self.instances, len(jobs) / scenario.duration_s, slo) if case.policy == ORACLE else None
        kv_tokens = max((spec.machine.kv_tokens for spec in scenario.fleet if spec.machine), default=0)
        cached = any(spec.prefix_cache for spec in scenario.fleet)
        self.replicas = [
            Replica(
                number,
                self.path,
                names=names,
                partitions=partitions,
                config=config,
                policy=make_policy(case.policy),
                rng=_rng(case, f"router {number}"),
                arm=case.arm,
                oracle=oracle,
                hashes_max=kv_tokens // HASH_TOKENS if cached else 0,
            )
            for number in range(scenario.routers)
        ]
        self.path.routers = list(self.replicas)
        self.poller = Poller(self.path, names, partitions)
        self.result = Result.empty(case, jobs, names)
        self._attempts: list[dict[str, _Attempt]] = [{} for _ in names]
        self._wakes: list[float | None] = [None] * len(names)
        self._told_down = [False] * len(names)
        self._number = 0
        self._open = len(jobs)
        self._faults_on = 0
        self._luck = _rng(case, "back-off")
        self._assigned = Random(f"{scenario.name}/{case.seed}/assignment")
        self._schedule()

    def run(self) -> Result:
        """Run until every request has ended."""
        end_ms = self.scenario.duration_s * 1000.0
        while self._open and self.timeline.now_ms < end_ms + DRAIN_MS_MAX:
            self.timeline.run(self.timeline.now_ms + 1000.0)
        return self._finished()

    def _finished(self) -> Result:
        result = self.result
        result.totals = [instance.final_totals() for instance in self.instances]
        result.choices = sum(replica.choices for replica in self.replicas)
        result.probes = sum(replica.probes for replica in self.replicas)
        result.folded_into_base = sum(replica.view.folded_into_base for replica in self.replicas)
        result.happened = self.timeline.happened
        return result

    def _schedule(self) -> None:
        at = self.timeline.at
        for replica in self.replicas:
            at(TICK_MS * replica.number / len(self.replicas), replica.tick)
        interval_ms = self.scenario.telemetry.gauge_interval_ms
        if interval_ms is not None:
            for index in range(len(self.instances)):
                at(interval_ms * index / len(self.instances), self._poll, index)
        for index, spec in enumerate(self.scenario.fleet):
            if spec.joins_at_ms > 0:
                at(spec.joins_at_ms, self._start, index)
        for fault in self.scenario.faults:
            at(fault.from_ms, self._fault, fault)
        at(SAMPLE_MS, self._sample)
        if self.jobs:
            at(self.jobs[0].at_ms, self._next_arrival, 0)

    # -- users

    def _next_arrival(self, number: int) -> None:
        job = self.jobs[number]
        if number + 1 < len(self.jobs):
            self.timeline.at(self.jobs[number + 1].at_ms, self._next_arrival, number + 1)
        replica = self.replicas[int(self._assigned.random() * len(self.replicas))]
        user = _User(job, replica, self.timeline.now_ms, self.scenario.client_retries)
        if self._faults_on:
            healthy_ms = healthy_ttft_ms(self.instances, job, self.timeline.now_ms)
            if healthy_ms is not None:
                self.result.healthy_ms[number] = healthy_ms
        self._come(user)

    def _come(self, user: _User) -> None:
        self.timeline.after(self.scenario.client_timeout_s * 1000.0, self._give_up, user)
        self._try(user)

    def _give_up(self, user: _User) -> None:
        attempt = user.attempt
        if user.done or (attempt is not None and attempt.ttft_ms is not None):
            return
        if attempt is not None:
            instance = self.instances[attempt.index]
            if self._attempts[attempt.index].pop(attempt.id, None) is not None:
                instance.abort(attempt.id, self.timeline.now_ms)
                self._rearm(attempt.index)
            user.replica.finish(attempt.lease, "client_gone")
        self._end(user, TIMED_OUT)

    def _try(self, user: _User) -> None:
        if user.done:
            return
        index, lease, probe = user.replica.choose(user.job, tuple(user.tried))
        self._number += 1
        now_ms = self.timeline.now_ms
        attempt = user.attempt = _Attempt(str(self._number), user, index, lease, now_ms)
        self.result.chosen(user.job.number, now_ms, index, probe=probe)
        before = user.tried.count(self.instances[index].name)
        if before:
            wait_ms = min(BACK_OFF_MS_MAX, BACK_OFF_MS * 2.0 ** (before - 1) * (0.5 + self._luck.random()))
            self.timeline.at(now_ms + wait_ms, self._send, attempt)
        else:
            self._send(attempt)

    def _send(self, attempt: _Attempt) -> None:
        user, now_ms = attempt.user, self.timeline.now_ms
        if user.done:
            return
        instance = self.instances[attempt.index]
        attempt.sent_ms = now_ms
        job = user.job
        request = SimRequest(attempt.id, job.prompt_tokens, job.output_tokens, job.hashes, job.noise, job.draw)
        answer = instance.submit(request, now_ms)
        if answer == "accepted":
            self._attempts[attempt.index][attempt.id] = attempt
            if instance.overloaded():
                self._crash(attempt.index)
                self.timeline.at(now_ms + OVERLOAD_RESTART_MS, self._start, attempt.index)
            else:
                self._rearm(attempt.index)
            return
        self._rearm(attempt.index)
        wait_ms = FAIL_MS if answer == "failed" else ANSWER_MS
        self.timeline.at(now_ms + wait_ms, self._refused, (attempt, _KIND[answer]))

    def _refused(self, ended: tuple[_Attempt, OutcomeKind]) -> None:
        attempt, kind = ended
        user = attempt.user
        user.replica.finish(attempt.lease, kind, cause=kind)
        if user.done:
            return
        user.tried.append(self.instances[attempt.index].name)
        user.attempt = None
        attempts_max = self.scenario.attempts_max if self.case.arm == "equal" else 1
        if len(user.tried) < attempts_max:
            self._try(user)
        elif user.tries_left:
            user.tries_left -= 1
            user.tried.clear()
            self.timeline.at(self.timeline.now_ms + CLIENT_WAIT_MS, self._try, user)
        else:
            self._end(user, REJECTED if kind == "saturated" else FAILED)

    def _end(self, user: _User, status: int) -> None:
        user.done = True
        self._open -= 1
        self.result.ended(user.job.number, status, self.timeline.now_ms - user.arrived_ms)

    # -- instances

    def _rearm(self, index: int) -> None:
        due_ms = self.instances[index].next_event_ms()
        if due_ms != self._wakes[index]:
            self._wakes[index] = due_ms
            if due_ms is not None:
                self.timeline.at(due_ms, self._wake, (index, due_ms))

    def _wake(self, due: tuple[int, float]) -> None:
        index, due_ms = due
        if self._wakes[index] != due_ms:
            return  # it was called before, and is due at another time now
        self._wakes[index] = None
        for emission in self.instances[index].advance(self.timeline.now_ms):
            self._emitted(index, emission)
        self._rearm(index)

    def _emitted(self, index: int, emission: Emission) -> None:
        attempt = self._attempts[index].get(emission.request_id)
        if attempt is None or emission.kind is EmissionKind.PREEMPTED:
            return
        user = attempt.user
        if emission.kind is EmissionKind.FIRST_TOKEN:
            attempt.ttft_ms = emission.at_ms - attempt.sent_ms
            self.result.first_token(user.job.number, emission.at_ms - user.arrived_ms, index)
            user.replica.first_token(attempt.lease, attempt.ttft_ms)
            return
        del self._attempts[index][attempt.id]
        user.replica.finish(attempt.lease, "ok", ttft_ms=attempt.ttft_ms, tokens=user.job.output_tokens)
        self._end(user, OK)

    def _crash(self, index: int) -> None:
        self.instances[index].crash()
        self._wakes[index] = None
        lost, self._attempts[index] = self._attempts[index], {}
        for attempt in lost.values():
            if attempt.ttft_ms is None:
                self.timeline.at(self.timeline.now_ms + ANSWER_MS, self._refused, (attempt, "upstream_cut"))
            else:
                attempt.user.replica.finish(attempt.lease, "upstream_cut", cause="eof", ttft_ms=attempt.ttft_ms)
                self._end(attempt.user, LOST)

    def _start(self, index: int) -> None:
        if not self.instances[index].up:
            self.instances[index].start(self.timeline.now_ms)
            for replica in self.replicas:
                if replica.prefixes is not None:
                    replica.prefixes.forget(self.instances[index].name)

    # -- faults

    def _fault(self, fault: Fault) -> None:
        at, instance = self.timeline.at, self.instances[fault.instance]
        self._faults_on += 1
        at(fault.until_ms, self._heal, fault)
        if fault.kind == "crash":
            self._crash(fault.instance)
        elif fault.kind == "fail":
            instance.fail(fault.share)
        elif fault.ramp_ms > 0:
            for step in range(1, RAMP_STEPS + 1):
                factor = 1.0 + (fault.factor - 1.0) * step / RAMP_STEPS
                at(fault.from_ms + fault.ramp_ms * step / RAMP_STEPS, self._slow, (fault, factor))
        else:
            self._slow((fault, fault.factor))

    def _slow(self, change: tuple[Fault, float]) -> None:
        fault, factor = change
        self.instances[fault.instance].slow(factor, fault.share, self.timeline.now_ms)
        self._rearm(fault.instance)

    def _heal(self, fault: Fault) -> None:
        self._faults_on -= 1
        if fault.kind == "crash":
            self._start(fault.instance)
        elif fault.kind == "fail":
            self.instances[fault.instance].fail(0.0)
        else:
            self._slow((fault, 1.0))

    # -- observers

    def _poll(self, index: int) -> None:
        interval_ms = self.scenario.telemetry.gauge_interval_ms
        assert interval_ms is not None
        now_ms = self.timeline.now_ms
        instance = self.instances[index]
        if instance.up:
            gauges = instance.gauges(now_ms)
            self._rearm(index)
            if self._told_down[index]:
                self._told_down[index] = False
                self.poller.tell(Membership(instance=instance.name, change="ready"))
            if gauges is not None:
                self.poller.tell(gauges)
        elif not self._told_down[index]:
            self._told_down[index] = True
            self.poller.tell(Membership(instance=instance.name, change="not_ready", cause="refused"))
        self.timeline.at(now_ms + interval_ms, self._poll, index)

    def _sample(self, _: object) -> None:
        held = array("l", (len(attempts) for attempts in self._attempts))
        self.result.sampled(self.timeline.now_ms, held)
        self.timeline.at(self.timeline.now_ms + SAMPLE_MS, self._sample)


def _rng(case: Case, purpose: str) -> Random:
    return Random(f"{case.scenario.name}/{case.seed}/{purpose}")
