"""What an oracle foresees: the roll-forward against what then happens."""

from dataclasses import replace
from random import Random
from statistics import median

import pytest

from evenload.sim import synthetic
from evenload.sim.engine import Engine
from evenload.sim.jobs import Job, Workload, arrivals
from evenload.sim.lookahead import outlook, tpot_ms, unloaded_ttft_ms
from evenload.sim.presets import preset
from evenload.sim.sequence import EmissionKind, SimRequest

H100 = preset("h100-8b")


def submit(engine: Engine, job: Job, now_ms: float) -> None:
    engine.submit(SimRequest(str(job.number), job.prompt_tokens, job.output_tokens), now_ms)


def first_token_ms(engine: Engine, number: int) -> float:
    return when(engine, EmissionKind.FIRST_TOKEN, number)


def end_ms(engine: Engine, number: int) -> float:
    return when(engine, EmissionKind.FINISHED, number)


def when(engine: Engine, kind: EmissionKind, number: int) -> float:
    while (due_ms := engine.next_event_ms()) is not None:
        for emission in engine.advance(due_ms):
            if emission.kind is kind and emission.request_id == str(number):
                return emission.at_ms
    raise AssertionError(f"no {kind} of {number}")


@pytest.mark.parametrize("prompt", [100, 5000, 40_000])
def test_alone_it_is_the_closed_form(prompt: int) -> None:
    seen = outlook(Engine(H100), Job(0, 0.0, prompt, 5), 100.0)
    assert seen.first_token_ms - 100.0 == pytest.approx(unloaded_ttft_ms(H100, prompt))
    assert seen.awaiting == 0


@pytest.mark.parametrize("name", ["h100-8b", "a100-8b", "l40s-8b"])
def test_on_a_busy_engine_it_is_exact_when_nobody_comes_after(name: str) -> None:
    rows = synthetic.rows("azure-conv")
    machine = preset(name)
    errors: list[float] = []
    for seed in range(12):
        jobs = arrivals(Workload(trace="azure-conv", rate_rps=14.0), rows, 14.0, 12.0, Random(seed))
        engine = Engine(machine)
        for job in jobs[:-1]:
            submit(engine, job, job.at_ms)
        last = jobs[-1]
        engine.advance(last.at_ms)
        expected_ms = outlook(engine, last, last.at_ms).first_token_ms
        submit(engine, last, last.at_ms)
        actual_ms = first_token_ms(engine, last.number)
        errors.append(abs(expected_ms - actual_ms) / (actual_ms - last.at_ms))
    assert median(errors) < 0.001
    assert max(errors) < 0.05


def test_looking_changes_nothing() -> None:
    rows = synthetic.rows("azure-conv")
    jobs = arrivals(Workload(trace="azure-conv", rate_rps=10.0), rows, 10.0, 10.0, Random(3))

    def play(look: bool) -> list[float]:
        engine, times = Engine(H100), []
        for job in jobs:
            times += [e.at_ms for e in engine.advance(job.at_ms)]
            if look:
                outlook(engine, job, job.at_ms)
            submit(engine, job, job.at_ms)
        return times

    assert play(True) == play(False)


def test_the_pace_of_tokens_is_foreseen_when_nobody_comes_after() -> None:
    rows = synthetic.rows("azure-conv")
    errors: list[float] = []
    for seed in range(12):
        jobs = arrivals(Workload(trace="azure-conv", rate_rps=14.0), rows, 14.0, 12.0, Random(seed))
        engine = Engine(H100)
        for job in jobs[:-1]:
            submit(engine, job, job.at_ms)
        last = replace(jobs[-1], output_tokens=200)
        engine.advance(last.at_ms)
        expected_ms = tpot_ms(engine, last)
        submit(engine, last, last.at_ms)
        first_ms = first_token_ms(engine, last.number)
        errors.append(abs(expected_ms / ((end_ms(engine, last.number) - first_ms) / 199) - 1.0))
    assert median(errors) < 0.05
    assert max(errors) < 0.15
