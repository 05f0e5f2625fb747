"""The fleet in virtual time: what must hold of every run, and what faults must do."""

from dataclasses import replace
from math import inf, isfinite

import pytest

from evenload.routing import POLICIES
from evenload.sim.jobs import Job, Workload
from evenload.sim.metrics import figures, floors_ms, unloaded_figures
from evenload.sim.results import FAILED, LOST, OK, OPEN, REJECTED, TIMED_OUT
from evenload.sim.scenario import Fault, InstanceSpec, Scenario, TelemetryPath, engines
from evenload.sim.simulation import Simulation, simulate
from tests.sim.fleets import FLEET, PROVIDERS, case, jobs_of, with_fault

JOBS = jobs_of(FLEET)
SLOW = Fault(kind="slow", instance=1, from_ms=10e3, until_ms=25e3, factor=17.5)


@pytest.mark.parametrize("policy", ["health-ramp", "prequal", "oracle"])
def test_the_same_case_gives_identical_bytes(policy: str) -> None:
    assert simulate(case(FLEET, policy), JOBS).digest() == simulate(case(FLEET, policy), JOBS).digest()


def test_another_seed_or_policy_gives_another_result() -> None:
    digests = {
        simulate(case(FLEET, policy, seed), jobs_of(FLEET, seed)).digest()
        for policy in ("random", "least-connections")
        for seed in (1, 2)
    }
    assert len(digests) == 4


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_request_ends_once_and_every_lease_is_given_back(policy: str) -> None:
    simulation = Simulation(case(FLEET, policy), JOBS)
    result = simulation.run()
    assert set(result.status) == {OK}
    assert all(isfinite(value) for value in result.ttft_ms)
    assert [replica.book.in_flight for replica in simulation.replicas] == [0, 0]
    assert all(instance.core.next_event_ms() is None for instance in simulation.instances)
    assert len(result.attempt_ms) == result.choices == len(JOBS)


MIXED = replace(FLEET, fleet=engines("h100-8b", 2) + engines("a100-8b", 2))
CACHED = replace(
    FLEET,
    fleet=engines("h100-8b", 4, prefix_cache=True),
    workload=Workload(trace="mooncake-conversation", rate_rps=6.0, scaling="compress"),
)


@pytest.mark.parametrize("scenario", [FLEET, MIXED, CACHED, PROVIDERS], ids=["equal", "mixed", "prefixes", "providers"])
@pytest.mark.parametrize("policy", ["oracle", "least-connections"])
def test_nobody_beats_the_unloaded_fastest_instance(scenario: Scenario, policy: str) -> None:
    jobs = jobs_of(scenario)
    result = simulate(case(scenario, policy), jobs)
    floors = floors_ms(scenario, jobs)
    assert all(isfinite(floor) and floor > 0.0 for floor in floors)
    assert all(result.ttft_ms[job.number] >= floors[job.number] - 1e-6 for job in jobs)
    assert min(result.ttft_ms[job.number] / floors[job.number] for job in jobs) < 1.01, "a floor that somebody reaches"
    assert {"l0_p50_ms", "l0_p99_ms", "l0_p999_ms"} <= unloaded_figures(result).keys()


def test_the_oracle_is_better_than_least_connections_than_random() -> None:
    busy = replace(FLEET, workload=Workload(trace="azure-conv", rate_rps=52.0))
    jobs = jobs_of(busy)
    p99 = {
        policy: figures(simulate(case(busy, policy), jobs))["ttft_p99_ms"]
        for policy in ("oracle", "least-connections", "random")
    }
    assert p99["oracle"] < p99["least-connections"] < p99["random"]


def test_routers_see_each_others_load_through_the_telemetry_path() -> None:
    simulation = Simulation(case(FLEET), JOBS)
    simulation.timeline.run(10_000.0)
    one, other = simulation.replicas
    now_ms = one._clock.now_ms(simulation.timeline.now_ms)
    seen = sum(one.view.read(name, one.book.counts(name), now_ms).others_in_flight for name in one._names)
    assert other.book.in_flight > 20
    assert seen == pytest.approx(other.book.in_flight, rel=0.35)


def test_the_view_of_a_router_follows_the_engines_gauges() -> None:
    simulation = Simulation(case(FLEET), JOBS)
    simulation.timeline.run(10_000.0)
    replica = simulation.replicas[0]
    now_ms = replica._clock.now_ms(simulation.timeline.now_ms)
    views = [replica.view.read(name, replica.book.counts(name), now_ms) for name in replica._names]
    assert all(view.state.running for view in views)
    assert all(now_ms - (view.state.gauges_ms or 0) < 900 for view in views)


def test_duplicated_batches_change_no_count() -> None:
    twice = replace(FLEET, telemetry=TelemetryPath(duplicate_share=1.0))
    simulation = Simulation(case(twice, "round-robin"), JOBS)
    simulation.run()
    simulation.timeline.run(simulation.timeline.now_ms + 5_000.0)
    told = sum(state.first_tokens for log in simulation.path.logs for state in log.states.values())
    assert told == len(JOBS)


def test_nothing_arrives_during_a_stall_and_everything_after_it() -> None:
    stalled = replace(FLEET, telemetry=TelemetryPath(stalls_ms=((5e3, 15e3),)))
    simulation = Simulation(case(stalled), JOBS)
    simulation.timeline.run(5_000.0)
    before = [log._offset for log in simulation.path.logs]
    simulation.timeline.run(15_000.0)
    assert [log._offset for log in simulation.path.logs] == before
    simulation.run()
    simulation.timeline.run(simulation.timeline.now_ms + 5_000.0)
    states = [state for log in simulation.path.logs for state in log.states.values()]
    # Events older than 10 s change counters only; nothing is lost.
    assert sum(state.first_tokens + state.successes + state.aged for state in states) >= 2 * len(JOBS)


def test_a_slow_provider_harms_those_who_are_sent_there() -> None:
    faulty = with_fault(PROVIDERS, SLOW)
    jobs = jobs_of(faulty)
    blind, seeing = (figures(simulate(case(faulty, policy), jobs)) for policy in ("round-robin", "peak-ewma-decay"))
    assert blind["harmed_share"] == pytest.approx(0.25, abs=0.06)
    assert seeing["harmed_share"] < blind["harmed_share"] / 3
    assert blind["t95_s"] == inf
    assert seeing["t95_s"] < 5.0


def test_the_share_of_a_mixture_is_slow_and_the_same_requests_under_every_policy() -> None:
    faulty = with_fault(replace(PROVIDERS, fleet=(InstanceSpec(),)), replace(SLOW, instance=0, share=0.2))
    jobs = jobs_of(faulty)
    slow = [
        {job.number for job in jobs if result.ttft_ms[job.number] > 1500.0}
        for result in (simulate(case(faulty, policy), jobs) for policy in ("random", "least-connections"))
    ]
    during = sum(10e3 <= job.at_ms < 25e3 for job in jobs)
    assert slow[0] == slow[1]
    assert len(slow[0]) == pytest.approx(0.2 * during, rel=0.25)


def test_a_black_hole_fails_bare_requests_and_retries_save_the_others() -> None:
    hole = with_fault(FLEET, Fault(kind="fail", instance=1, from_ms=5e3, until_ms=15e3))
    bare, equal = (simulate(case(hole, arm=arm), JOBS) for arm in ("bare", "equal"))
    assert bare.status.count(FAILED) > 100
    assert equal.status.count(FAILED) == 0
    assert len(equal.attempt_ms) > len(JOBS)
    assert all(bare.ttft_ms[n] == inf for n, status in enumerate(bare.status) if status == FAILED)


def test_a_killed_engine_loses_begun_streams_only_and_comes_back_cold() -> None:
    killed = with_fault(FLEET, Fault(kind="crash", instance=1, from_ms=8e3, until_ms=14e3))
    simulation = Simulation(case(killed, "health-ramp"), JOBS)
    result = simulation.run()
    lost = result.status.count(LOST)
    assert 0 < lost < 40
    assert result.status.count(OK) == len(JOBS) - lost
    during = [
        instance
        for at_ms, instance in zip(result.attempt_ms, result.attempt_instance, strict=True)
        if 9e3 <= at_ms < 14e3
    ]
    assert during.count(1) == 0
    assert simulation.instances[1].lives == 2
    state = next(log.states["i01"] for log in simulation.path.logs if "i01" in log.states)
    assert state.restarts >= 1


def test_an_instance_gets_nothing_before_it_joins() -> None:
    fleet = (*engines("h100-8b", 3), *engines("h100-8b", 1, joins_at_ms=10e3))
    result = simulate(case(replace(FLEET, fleet=fleet), "health-ramp"), JOBS)
    served = [job.at_ms for job in JOBS if result.instance[job.number] == 3]
    assert served
    assert min(served) >= 10e3 - 1000.0
    assert result.status.count(OK) == len(JOBS)


def test_a_bounded_queue_rejects_and_retries_find_room() -> None:
    tight = replace(
        FLEET, fleet=engines("h100-8b", 4, queue_max=1), workload=Workload(trace="azure-conv", rate_rps=70.0)
    )
    jobs = jobs_of(tight)
    bare, equal = (simulate(case(tight, arm=arm), jobs) for arm in ("bare", "equal"))
    assert bare.status.count(REJECTED) > equal.status.count(REJECTED)
    assert sum(total.rejections for total in equal.totals) > 0


def test_clients_come_again_when_they_were_refused() -> None:
    hole = with_fault(
        replace(FLEET, fleet=engines("h100-8b", 1), workload=Workload(trace="azure-conv", rate_rps=5.0)),
        Fault(kind="fail", instance=0, from_ms=5e3, until_ms=6e3),
    )
    jobs = jobs_of(hole)
    assert simulate(case(hole), jobs).status.count(FAILED) > 0
    again = simulate(case(replace(hole, client_retries=2)), jobs)
    assert again.status.count(FAILED) == 0
    assert max(again.ttft_ms) > 1000.0  # from the first arrival on


def test_clients_leave_when_no_token_comes() -> None:
    impatient = replace(
        FLEET,
        fleet=engines("h100-8b", 1),
        workload=Workload(trace="azure-conv", rate_rps=40.0),
        client_timeout_s=1.0,
    )
    simulation = Simulation(case(impatient), jobs_of(impatient))
    result = simulation.run()
    assert result.status.count(TIMED_OUT) > 0
    assert result.status.count(OPEN) == 0
    assert simulation.replicas[0].book.in_flight == 0
    assert max(value for value in result.ttft_ms if isfinite(value)) <= 1000.0


def test_a_worker_that_is_handed_far_too_much_dies_and_returns() -> None:
    fleet = engines("h100-8b", 2, 20_000, crash_overload=2.0)
    overloaded = replace(FLEET, fleet=fleet, workload=Workload(trace="azure-conv", rate_rps=30.0))
    result = simulate(case(overloaded), jobs_of(overloaded))
    assert sum(total.crashes for total in result.totals) > 0
    assert result.status.count(OPEN) == 0


def test_shared_prefixes_are_hit_more_when_the_policy_knows_them() -> None:
    workload = Workload(trace="mooncake-conversation", rate_rps=6.0, scaling="compress")
    cached = replace(FLEET, fleet=engines("h100-8b", 4, prefix_cache=True), workload=workload, duration_s=60.0)
    jobs = jobs_of(cached)
    hits = {
        policy: figures(simulate(case(cached, policy), jobs))["prefix_hit_share"]
        for policy in ("random", "sglang-cache-aware")
    }
    assert 0.0 < hits["random"] < 0.7 * hits["sglang-cache-aware"]


def test_a_failing_assertion_names_the_command_that_replays_it() -> None:
    broken = [*JOBS[:50], Job(3, JOBS[50].at_ms, 100, 10)]  # a request number that has ended already
    with pytest.raises(AssertionError, match="evenload sim run s1-u70 --policy random --seeds 1,"):
        simulate(case(FLEET, "random"), broken)
