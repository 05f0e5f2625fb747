"""The load generator against simulated engines, and against servers that misbehave."""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from evenload.demo.engine_server import EngineFleet, EngineServer
from evenload.demo.http_probe import until
from evenload.demo.http_server import Exchange, HttpListener
from evenload.demo.load import (
    LoadGenerator,
    Result,
    chat_body,
    instance_shares,
    percentile,
    ttft_percentile_ms,
)
from evenload.demo.load_client import Outcome
from evenload.demo.openai_request import Kind, parse
from evenload.demo.workload import Arrival

MODEL = "demo-8b"


@pytest.fixture
async def fleet() -> AsyncIterator[EngineFleet]:
    engines = EngineFleet([EngineServer(name=f"engine-{i}", model=MODEL, speed=20.0) for i in range(2)])
    await engines.start()
    yield engines
    await engines.stop()


def arrivals(count: int, gap_s: float = 0.005, output: int = 6) -> list[Arrival]:
    return [Arrival(i * gap_s, 50, output) for i in range(count)]


def generator(fleet: EngineFleet, **options: float) -> LoadGenerator:
    return LoadGenerator([e.url for e in fleet.engines], MODEL, **options)  # type: ignore[arg-type]


async def test_every_arrival_gets_its_answer_from_the_routers_in_turn(fleet: EngineFleet) -> None:
    load = generator(fleet)
    results = await load.run(arrivals(40))
    assert {r.outcome for r in results} == {Outcome.OK}
    assert {r.tokens for r in results} == {6}
    assert all(r.ttft_ms is not None and 0 < r.ttft_ms <= r.duration_ms for r in results)
    assert [sum(r.router == e.url for r in results) for e in fleet.engines] == [20, 20]
    assert sorted(r.at_s for r in results) == [a.at_s for a in arrivals(40)]
    assert (load.sent, load.failovers, load.skipped, load.in_flight) == (40, 0, 0, 0)


@pytest.mark.parametrize(
    ("fault", "outcome", "status", "with_ttft"),
    [
        ({"fail_fast": {}}, Outcome.HTTP_ERROR, 500, False),
        ({"saturate": {"mode": "kv_429"}}, Outcome.HTTP_ERROR, 429, False),
        ({"saturate": {"mode": "stream_error"}}, Outcome.STREAM_ERROR, 200, False),
        ({"cut": {"how": "reset"}}, Outcome.CUT, 200, True),
        ({"cut": {"how": "eof"}}, Outcome.CUT, 200, True),
        ({"cut": {"how": "end"}}, Outcome.CUT, 200, True),
        ({"cut": {"how": "end", "after_tokens": 0}}, Outcome.CUT, 200, False),
    ],
)
async def test_each_fault_is_seen_as_what_it_is(
    fleet: EngineFleet, fault: dict[str, object], outcome: Outcome, status: int, with_ttft: bool
) -> None:
    for engine in fleet.engines:
        await engine.set_faults(fault)
    results = await generator(fleet).run(arrivals(4))
    assert {(r.outcome, r.status) for r in results} == {(outcome, status)}
    assert all((r.ttft_ms is not None) == with_ttft for r in results)
    assert not any(r.ok for r in results)


async def test_a_refused_connection_goes_to_the_next_router_and_is_counted(fleet: EngineFleet) -> None:
    await fleet.engines[0].set_faults({"crash": {}})
    load = generator(fleet)
    results = await load.run(arrivals(10))
    assert {(r.outcome, r.router) for r in results} == {(Outcome.OK, fleet.engines[1].url)}
    assert load.failovers == 5


async def test_when_all_routers_refuse_it_is_a_connect_error(fleet: EngineFleet) -> None:
    for engine in fleet.engines:
        await engine.set_faults({"crash": {}})
    results = await generator(fleet).run(arrivals(3))
    assert {(r.outcome, r.status, r.ttft_ms) for r in results} == {(Outcome.CONNECT_ERROR, None, None)}


async def test_a_router_that_dies_under_a_request_is_not_retried(fleet: EngineFleet) -> None:
    load = generator(fleet)
    run = asyncio.create_task(load.run([Arrival(0.0, 10, 20_000), Arrival(0.0, 10, 20_000)]))
    await until(lambda: sum(e.life.in_flight for e in fleet.engines) == 2)
    for engine in fleet.engines:
        await engine.set_faults({"crash": {}})
    assert {r.outcome for r in await run} == {Outcome.CUT}
    assert load.failovers == 0


async def test_arrivals_do_not_wait_for_answers_and_a_hang_is_given_up(fleet: EngineFleet) -> None:
    for engine in fleet.engines:
        await engine.set_faults({"hang": {}})
    load = generator(fleet, timeout_s=0.4)
    results = await load.run(arrivals(20))
    assert {r.outcome for r in results} == {Outcome.TIMEOUT}
    assert min(r.duration_ms for r in results) >= 390
    assert load.late_ms_max < 300, "the twentieth was sent while the first one hung"


async def test_the_bound_of_requests_in_flight_is_kept_and_counted(fleet: EngineFleet) -> None:
    for engine in fleet.engines:
        await engine.set_faults({"hang": {}})
    load = generator(fleet, timeout_s=0.3, in_flight_max=5)
    results = await load.run([Arrival(0.0, 10, 5)] * 12)
    assert (len(results), load.skipped) == (5, 7)


async def test_stop_sends_no_more_and_lets_the_rest_finish(fleet: EngineFleet) -> None:
    load = generator(fleet)
    run = asyncio.create_task(load.run([Arrival(0.0, 10, 5), Arrival(3600.0, 10, 5)]))
    await until(lambda: bool(load.results))
    load.stop()
    assert [r.outcome for r in await run] == [Outcome.OK]


async def test_results_are_told_as_they_come(fleet: EngineFleet) -> None:
    told: list[Result] = []
    load = LoadGenerator([fleet.engines[0].url], MODEL, on_result=told.append)
    assert await load.run(arrivals(5)) == told


def scripted(*frames: bytes, headers: tuple[tuple[str, str], ...] = ()) -> HttpListener:
    """A server that answers every request with these events."""

    def handler(exchange: Exchange) -> None:
        exchange.start_stream(extra=headers)
        for frame in frames:
            exchange.send(frame)
        exchange.end()

    return HttpListener(handler)


async def one_result(listener: HttpListener) -> Result:
    await listener.open()
    try:
        return (await LoadGenerator([f"http://127.0.0.1:{listener.port}"], MODEL).run([Arrival(0.0, 5, 5)]))[0]
    finally:
        listener.close(reset=False)


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi \\"error\\""},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def test_role_frames_and_comments_do_not_stop_the_ttft_clock() -> None:
    result = await one_result(scripted(b": keep-alive\n\n", ROLE, DONE))
    assert (result.ttft_ms, result.outcome) == (None, Outcome.CUT)


async def test_frames_split_over_chunks_are_put_together_and_the_instance_is_noted() -> None:
    data = ROLE + TOKEN + LAST + DONE
    pieces = [data[i : i + 7] for i in range(0, len(data), 7)]
    result = await one_result(scripted(*pieces, headers=(("x-evenload-instance", "engine-3"),)))
    assert (result.outcome, result.tokens, result.instance) == (Outcome.OK, 2, "engine-3")


async def test_reasoning_stops_the_clock_as_content_does() -> None:
    thought = b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}]}\n\n'
    result = await one_result(scripted(ROLE, thought, DONE))
    assert result.ttft_ms is not None


async def test_an_error_after_content_is_a_stream_error() -> None:
    error = b'data: {"error": {"message": "EngineCore", "code": 500}}\n\n'
    result = await one_result(scripted(ROLE, TOKEN, error, DONE))
    assert (result.outcome, result.tokens) == (Outcome.STREAM_ERROR, 1)


@pytest.mark.parametrize("tokens", [1, 10, 1000, 7437])
def test_prompts_have_the_size_that_was_asked_for(tokens: int) -> None:
    body = chat_body('mod"el', Arrival(0.0, tokens, 30), 12)
    generation = parse(Kind.CHAT, body, model='mod"el', context_tokens=10_000)
    assert (generation.prompt_tokens, generation.max_tokens, generation.ignore_eos) == (tokens, 30, True)


def test_percentiles_are_nearest_rank_and_failures_are_infinite() -> None:
    assert [percentile(range(1, 101), q) for q in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert math.isnan(percentile([], 50))
    with pytest.raises(ValueError, match=r"0\.\.100"):
        percentile([1.0], 101)

    def result(ttft_ms: float | None, outcome: Outcome, instance: str | None = None) -> Result:
        return Result(0.0, ttft_ms, 1.0, 200, outcome, "r", instance, 1)

    results = [result(10.0, Outcome.OK, "a"), result(5.0, Outcome.CUT, "b"), result(20.0, Outcome.OK, "a")]
    assert ttft_percentile_ms(results, 50) == 20.0
    assert ttft_percentile_ms(results, 100) == math.inf
    shares = instance_shares([*results, result(None, Outcome.TIMEOUT)])
    assert shares == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}


@pytest.mark.parametrize("url", ["127.0.0.1:80", "https://host", "http://"])
def test_a_router_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        LoadGenerator([url], MODEL)
