"""The engine model: what must hold of any engine, and closed forms where there are some."""

import dataclasses
from collections.abc import Callable
from random import Random

import pytest

from evenload.sim.engine import Engine
from evenload.sim.presets import PRESETS, EnginePreset, preset
from evenload.sim.sequence import Emission, EmissionKind, SimRequest

H100 = preset("h100-8b")
TINY = dataclasses.replace(H100, kv_tokens=640, step_budget=128, seqs_max=8)


def drain(engine: Engine) -> list[Emission]:
    """Run an engine until it is idle."""
    emissions: list[Emission] = []
    while (due_ms := engine.next_event_ms()) is not None:
        emissions += engine.advance(due_ms)
    return emissions


def workload(
    rng: Random, count: int, gap_ms: float, prompt_max: int, output_max: int
) -> list[tuple[float, SimRequest]]:
    now_ms, requests = 0.0, []
    for number in range(count):
        now_ms += rng.expovariate(1 / gap_ms)
        requests.append((now_ms, SimRequest(str(number), rng.randint(1, prompt_max), rng.randint(1, output_max))))
    return requests


def play(
    engine: Engine,
    requests: list[tuple[float, SimRequest]],
    *,
    by_step: bool = False,
    look: Callable[[Engine], None] = lambda _: None,
) -> list[Emission]:
    """Feed a workload, event by event or step by step; `look` is called in between."""
    due = engine.next_step_ms if by_step else engine.next_event_ms
    emissions: list[Emission] = []
    for at_ms, request in requests:
        while (next_ms := due()) is not None and next_ms <= at_ms:
            emissions += engine.advance(next_ms)
            look(engine)
        engine.submit(request, at_ms)
        look(engine)
    while (next_ms := due()) is not None:
        emissions += engine.advance(next_ms)
        look(engine)
    return emissions


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("prompt", [1, 100, 1000, 20_000])
def test_one_request_alone_has_the_closed_form_ttft(name: str, prompt: int) -> None:
    machine = preset(name)
    engine = Engine(machine)
    engine.submit(SimRequest("a", prompt, 1), 5.0)
    first = next(e for e in drain(engine) if e.kind is EmissionKind.FIRST_TOKEN)
    expected_ms, done = 5.0, 0
    while done < prompt:
        chunk = min(machine.step_budget, prompt - done)
        linear_ms = max(machine.memory_ms, machine.per_token_ms * chunk)
        expected_ms += machine.fixed_ms + linear_ms + machine.attention_ms * chunk * (done + chunk / 2)
        done += chunk
    assert first.at_ms == pytest.approx(expected_ms)


def test_decoding_alone_takes_the_sum_of_steps_that_read_a_growing_cache() -> None:
    engine = Engine(H100)
    engine.submit(SimRequest("a", 1000, 11), 0.0)
    first, finished = drain(engine)
    steps = sum(8.0 + 0.055e-3 * (1000 + i) + 0.02 for i in range(10))
    assert (first.kind, finished.kind) == (EmissionKind.FIRST_TOKEN, EmissionKind.FINISHED)
    assert finished.at_ms - first.at_ms == pytest.approx(steps)


def test_prompts_that_arrive_while_a_step_runs_are_batched_into_the_next() -> None:
    engine = Engine(H100)
    engine.submit(SimRequest("a", 2000, 1), 0.0)
    engine.submit(SimRequest("b", 300, 1), 1.0)
    engine.submit(SimRequest("c", 300, 1), 2.0)
    first = {e.request_id: e.at_ms for e in drain(engine) if e.kind is EmissionKind.FIRST_TOKEN}
    assert first["a"] < first["b"] == first["c"]


def test_a_long_prompt_is_computed_in_chunks_beside_running_decoders() -> None:
    engine = Engine(TINY)
    engine.submit(SimRequest("decoder", 16, 40), 0.0)
    engine.submit(SimRequest("long", 400, 1), 1.0)
    emissions = play(engine, [])
    first = {e.request_id: e.at_ms for e in emissions if e.kind is EmissionKind.FIRST_TOKEN}
    finished = {e.request_id: e.at_ms for e in emissions if e.kind is EmissionKind.FINISHED}
    # 400 tokens in chunks of at most 127 beside one decoder: four steps, in each of which the decoder emits a token.
    step_ms = TINY.fixed_ms + TINY.memory_ms
    assert first["long"] - first["decoder"] == pytest.approx(4 * step_ms, rel=0.02)
    assert finished["decoder"] > first["long"]


@pytest.mark.parametrize("seed", range(8))
def test_the_cache_is_never_overfull_and_is_empty_in_the_end(seed: int) -> None:
    engine = Engine(TINY)
    seen: list[float] = []
    emissions = play(
        engine, workload(Random(seed), 300, 20.0, 200, 100), look=lambda e: seen.append(e.gauges().kv_usage)
    )
    gauges = engine.gauges()
    assert max(seen) <= 1.0
    assert min(seen) >= 0.0
    assert max(seen) > 0.9, "the workload has to press for the test to mean something"
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (0, 0, 0.0)
    assert sum(e.kind is EmissionKind.FINISHED for e in emissions) == 300


@pytest.mark.parametrize("seed", range(8))
def test_every_token_is_generated_exactly_once_whatever_was_preempted(seed: int) -> None:
    requests = workload(Random(seed), 200, 10.0, 200, 100)
    engine = Engine(TINY)
    emissions = play(engine, requests)
    assert engine.gauges().preemptions > 0
    assert engine.gauges().generation_tokens == sum(r.output_tokens for _, r in requests)
    firsts = [e.request_id for e in emissions if e.kind is EmissionKind.FIRST_TOKEN]
    assert len(firsts) == len(set(firsts)) == 200


@pytest.mark.parametrize("seed", range(4))
def test_first_tokens_come_in_order_of_arrival(seed: int) -> None:
    emissions = play(Engine(TINY), workload(Random(seed), 300, 15.0, 300, 60))
    firsts = [int(e.request_id) for e in emissions if e.kind is EmissionKind.FIRST_TOKEN]
    # Two prompts of one step have their first token at the same time, in order of arrival as well.
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_happens_before_its_cause_and_time_never_goes_back(seed: int) -> None:
    requests = workload(Random(seed), 200, 15.0, 200, 60)
    arrived = {request.id: at_ms for at_ms, request in requests}
    emissions = play(Engine(TINY), requests)
    times = [e.at_ms for e in emissions]
    assert times == sorted(times)
    first: dict[str, float] = {}
    for emission in emissions:
        if emission.kind is EmissionKind.FIRST_TOKEN:
            first[emission.request_id] = emission.at_ms
            assert emission.at_ms >= arrived[emission.request_id] + TINY.fixed_ms + TINY.memory_ms
        elif emission.kind is EmissionKind.FINISHED:
            assert emission.at_ms >= first[emission.request_id]


def test_an_engine_with_work_is_never_idle() -> None:
    engine = Engine(TINY)
    idle_with_work: list[str] = []

    def look(engine: Engine) -> None:
        gauges = engine.gauges()
        if (gauges.running + gauges.waiting > 0) != (engine.next_step_ms() is not None):
            idle_with_work.append(repr(engine))

    emissions = play(engine, workload(Random(3), 300, 40.0, 200, 60), look=look)
    assert not idle_with_work
    # Busy time is the sum of all steps: it cannot exceed the time that passed.
    assert engine.gauges().busy_ms <= emissions[-1].at_ms


@pytest.mark.parametrize("seed", range(3))
def test_jumping_over_steps_gives_the_same_bits_as_walking_them(seed: int) -> None:
    requests = workload(Random(seed), 150, 25.0, 200, 80)
    assert play(Engine(TINY), requests) == play(Engine(TINY), requests, by_step=True)


def test_the_same_seed_gives_identical_output() -> None:
    runs = [play(Engine(TINY), workload(Random(11), 200, 15.0, 200, 60)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_full_cache_preempts_the_latest_arrival_which_recomputes_and_finishes() -> None:
    engine = Engine(dataclasses.replace(TINY, kv_tokens=160))  # ten blocks
    engine.submit(SimRequest("old", 64, 60), 0.0)
    engine.submit(SimRequest("new", 64, 60), 1.0)
    emissions = drain(engine)
    kinds = [(e.kind.value, e.request_id) for e in emissions]
    assert kinds == [
        ("first_token", "old"),
        ("first_token", "new"),
        ("preempted", "new"),
        ("finished", "old"),
        ("finished", "new"),
    ]
    gauges = engine.gauges()
    assert gauges.preemptions == 1
    assert 64 < gauges.recomputed_tokens <= 96
    assert gauges.generation_tokens == 120


def test_a_preempted_sequence_goes_before_those_that_wait() -> None:
    engine = Engine(dataclasses.replace(TINY, kv_tokens=160))
    for name in ("old", "new", "later"):
        engine.submit(SimRequest(name, 64, 60), 0.0)
    finished = [e.request_id for e in drain(engine) if e.kind is EmissionKind.FINISHED]
    assert finished == ["old", "new", "later"]


def test_a_bounded_queue_refuses_and_counts() -> None:
    engine = Engine(dataclasses.replace(TINY, seqs_max=1), queue_max=2)
    accepted = [engine.submit(SimRequest(str(i), 16, 50), 0.0) for i in range(5)]
    assert accepted == [True, True, True, False, False]
    assert engine.gauges().rejections == 2
    assert engine.gauges().waiting == 2


def test_an_unbounded_queue_takes_everything() -> None:
    engine = Engine(dataclasses.replace(TINY, seqs_max=1))
    assert all(engine.submit(SimRequest(str(i), 16, 5), 0.0) for i in range(1000))
    assert engine.gauges().waiting == 999


@pytest.mark.parametrize("seed", range(4))
def test_aborts_at_any_moment_give_everything_back(seed: int) -> None:
    rng = Random(seed)
    engine = Engine(TINY)
    held: list[str] = []
    now_ms = 0.0
    for number in range(400):
        now_ms += rng.expovariate(1 / 12.0)
        engine.advance(now_ms)
        engine.submit(SimRequest(str(number), rng.randint(1, 300), rng.randint(1, 60)), now_ms)
        held.append(str(number))
        if rng.random() < 0.4:
            engine.abort(held.pop(rng.randrange(len(held))), now_ms)
    drain(engine)
    gauges = engine.gauges()
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (0, 0, 0.0)
    assert not any(engine.holds(name) for name in held)


def test_an_aborted_request_emits_nothing_more() -> None:
    engine = Engine(H100)
    engine.submit(SimRequest("a", 1000, 100), 0.0)
    assert engine.abort("a", 3.0)
    assert not engine.abort("a", 3.0)
    assert drain(engine) == []


def test_tokens_of_counts_up_step_by_step() -> None:
    engine = Engine(H100)
    engine.submit(SimRequest("a", 100, 5), 0.0)
    counts = []
    while engine.holds("a"):
        counts.append(engine.tokens_of("a"))
        due_ms = engine.next_step_ms()
        assert due_ms is not None
        engine.advance(due_ms)
    assert counts == [0, 1, 2, 3, 4]


def test_a_slowdown_stretches_the_steps_that_follow() -> None:
    normal, slow = Engine(H100), Engine(H100)
    slow.set_slowdown(17.0, 0.0)
    for engine in (normal, slow):
        engine.submit(SimRequest("a", 500, 10), 0.0)
    assert drain(slow)[-1].at_ms == pytest.approx(17 * drain(normal)[-1].at_ms)
    with pytest.raises(ValueError, match="positive"):
        slow.set_slowdown(0.0, 1e6)


def test_a_slowdown_in_the_middle_of_a_jump_takes_effect_with_the_next_step() -> None:
    engine = Engine(H100)
    engine.submit(SimRequest("a", 16, 1001), 0.0)
    engine.advance(800.0)
    done = engine.tokens_of("a")
    engine.set_slowdown(10.0, 800.0)
    engine.advance(1600.0)
    assert done > 90
    assert engine.tokens_of("a") - done == pytest.approx(10, abs=1)


def test_what_can_never_fit_is_refused_with_a_reason() -> None:
    engine = Engine(TINY)
    with pytest.raises(ValueError, match="exceed the cache of 640"):
        engine.submit(SimRequest("big", 600, 100), 0.0)
    engine.submit(SimRequest("a", 10, 10), 0.0)
    with pytest.raises(ValueError, match="in the engine already"):
        engine.submit(SimRequest("a", 10, 10), 0.0)
    with pytest.raises(ValueError, match="at least 1"):
        SimRequest("b", 0, 1)


def test_waiting_time_without_batching_is_pollaczek_khinchines() -> None:
    machine = dataclasses.replace(H100, seqs_max=1)
    service_ms = machine.step_ms(decoders=0, prefill_tokens=512, kv_read=0, attention_work=512 * 256)
    load = 0.5
    rng, engine, now_ms = Random(5), Engine(machine), 0.0
    arrived: dict[str, float] = {}
    waited_ms = 0.0
    served = 0
    for number in range(80_000):
        now_ms += rng.expovariate(load / service_ms)
        for emission in engine.advance(now_ms):
            if emission.kind is EmissionKind.FINISHED:
                waited_ms += emission.at_ms - arrived.pop(emission.request_id) - service_ms
                served += 1
        arrived[str(number)] = now_ms
        engine.submit(SimRequest(str(number), 512, 1), now_ms)
    expected_ms = load * service_ms / (2 * (1 - load))
    assert waited_ms / served == pytest.approx(expected_ms, rel=0.02)


def test_presets_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="h100-8b, a100-8b"):
        preset("b200")
    wrong: list[dict[str, float]] = [{"per_token_ms": -1.0}, {"kv_tokens": 3}, {"seqs_max": 8192}, {"seqs_max": 0}]
    for change in wrong:
        with pytest.raises(ValueError, match="preset h100-8b"):
            dataclasses.replace(H100, **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must take time"):
        dataclasses.replace(H100, fixed_ms=0.0, memory_ms=0.0)


class SharesHalf:
    """A prefix index for which ten blocks are always cached."""

    def cached_blocks(self, _block_hashes: tuple[int, ...], /) -> int:
        return 10

    def store(self, _block_hashes: tuple[int, ...], /) -> None:
        pass


def test_cached_prefix_blocks_are_not_computed_but_the_last_token_is() -> None:
    engine = Engine(H100, prefixes=SharesHalf())
    engine.submit(SimRequest("a", 1000, 1), 0.0)
    engine.submit(SimRequest("b", 160, 1), 100.0)
    emissions = drain(engine)
    gauges = engine.gauges()
    assert (gauges.prefix_queries, gauges.prefix_hits) == (1160, 160 + 144)
    assert emissions[0].at_ms == pytest.approx(
        H100.step_ms(decoders=0, prefill_tokens=840, kv_read=0, attention_work=840 * (160 + 420))
    )


def test_the_published_base_of_each_preset_is_the_time_of_an_almost_empty_step() -> None:
    base = {"h100-8b": 8, "a100-8b": 12, "l40s-8b": 22, "h100x4-70b": 18, "h100x2-qwen32b": 15}
    for name, base_ms in base.items():
        machine: EnginePreset = preset(name)
        step_ms = machine.step_ms(decoders=1, prefill_tokens=0, kv_read=0, attention_work=0)
        assert step_ms == pytest.approx(base_ms, rel=0.02)
