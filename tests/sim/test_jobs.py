"""Workloads: rates, rescaling, common random numbers, capacity."""

from random import Random

import pytest

from evenload.sim import synthetic
from evenload.sim.capacity import capacity_rps
from evenload.sim.engine import Engine
from evenload.sim.jobs import Row, Workload, arrivals, sized, trace_length_s
from evenload.sim.presets import preset
from evenload.sim.sequence import EmissionKind, SimRequest

ROWS = synthetic.rows("azure-conv")


@pytest.mark.parametrize("rate", [2.0, 5.5, 60.0])
def test_jobs_come_at_the_wanted_rate_in_order(rate: float) -> None:
    jobs = arrivals(Workload(trace="azure-conv", rate_rps=rate), ROWS, rate, 300.0, Random(1))
    times = [job.at_ms for job in jobs]
    assert times == sorted(times)
    assert len(jobs) == pytest.approx(rate * 300.0, rel=0.15)
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert times[-1] < 300e3


def test_phases_change_the_rate() -> None:
    workload = Workload(trace="azure-conv", rate_rps=20.0, phases=((100.0, 1.0), (200.0, 2.0), (1e9, 0.5)))
    jobs = arrivals(workload, ROWS, 20.0, 300.0, Random(1))
    counts = [sum(low <= job.at_ms < low + 100e3 for job in jobs) for low in (0, 100e3, 200e3)]
    assert counts[1] / counts[0] == pytest.approx(2.0, rel=0.15)
    assert counts[2] / counts[0] == pytest.approx(0.5, rel=0.15)


def test_compression_alone_keeps_the_order_of_the_trace() -> None:
    rows = [Row(float(n), 10 + n, 5) for n in range(100)]
    jobs = arrivals(Workload(trace="x", time_factor=2.0, scaling="compress"), rows, 2.0, 40.0, Random(1))
    assert [job.prompt_tokens for job in jobs] == [10 + n for n in range(80)]
    assert jobs[1].at_ms - jobs[0].at_ms == pytest.approx(500.0)
    assert trace_length_s(rows) == pytest.approx(100.0)


def test_long_prompts_are_mixed_in_and_sizes_cut_to_what_fits() -> None:
    mixed = sized(Workload(trace="x", rate_rps=1.0, long_share=0.02), ROWS, Random(1))
    assert sum(row.prompt_tokens >= 32_768 for row in mixed) / len(mixed) == pytest.approx(0.02, abs=0.005)
    cut = sized(Workload(trace="x", rate_rps=1.0, tokens_max=1000), ROWS, Random(1))
    assert max(row.prompt_tokens + row.output_tokens for row in cut) <= 1000


def test_a_workload_has_exactly_one_rate() -> None:
    with pytest.raises(ValueError, match="one of"):
        Workload(trace="x")
    with pytest.raises(ValueError, match="one of"):
        Workload(trace="x", rate_rps=1.0, utilisation=0.5)


@pytest.mark.parametrize("trace", ["azure-conv", "azure-code", "m-large"])
@pytest.mark.parametrize("name", ["h100-8b", "a100-8b", "l40s-8b"])
def test_the_closed_form_capacity_is_what_a_flooded_engine_completes(name: str, trace: str) -> None:
    machine = preset(name)
    rows = synthetic.rows(trace)[:2500]
    engine = Engine(machine)
    for number, row in enumerate(rows):
        engine.submit(SimRequest(str(number), row.prompt_tokens, row.output_tokens), 0.0)
    ends: list[float] = []
    while (due_ms := engine.next_event_ms()) is not None:
        ends += [e.at_ms for e in engine.advance(due_ms) if e.kind is EmissionKind.FINISHED]
    # From the middle half of the run: neither the first filling nor the last emptying.
    low, high = len(ends) // 4, 3 * len(ends) // 4
    measured_rps = (high - low) / (ends[high] - ends[low]) * 1000.0
    assert capacity_rps(machine, rows) == pytest.approx(measured_rps, rel=0.15)
