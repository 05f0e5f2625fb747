"""Faults of a simulated engine: what may be asked, and what each does over real sockets."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenload.demo.engine_server import EngineFleet, EngineServer
from evenload.demo.faults import FaultError, Faults
from evenload.demo.http_probe import Ending, Reply, probe, until

QUESTION = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "ignore_eos": True}
CHAT = "/v1/chat/completions"


@pytest.fixture
async def fleet() -> AsyncIterator[EngineFleet]:
    engines = EngineFleet([EngineServer(name=f"engine-{i}", speed=4.0) for i in range(2)])
    await engines.start()
    yield engines
    await engines.stop()


@pytest.fixture
def engine(fleet: EngineFleet) -> EngineServer:
    return fleet.engines[0]


async def ask(engine: EngineServer, *, stream: bool = True, timeout_s: float = 20.0, **options: object) -> Reply:
    body = json.dumps({**QUESTION, "stream": stream, **options}).encode()
    return await probe(engine.url, "POST", CHAT, body, timeout_s=timeout_s)


async def post_faults(engine: EngineServer, document: object, query: str = "") -> Reply:
    return await probe(engine.url, "POST", f"/admin/faults{query}", json.dumps(document).encode())


async def running(engine: EngineServer, count: int) -> None:
    await until(lambda: engine.life.in_flight == count)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({}, "at least one of slow, fail_fast"),
        ([], "expected an object"),
        ({"slwo": {}}, "unknown field `slwo`"),
        ({"slow": {"ttft": 3}}, "unknown field `ttft` - at `$.slow`"),
        ({"slow": {}}, "needs factor"),
        ({"slow": {"factor": 0}}, "$.slow.factor"),
        ({"slow": {"factor": 2, "probability": 0.5}}, "$.slow.probability"),
        ({"slow": {"ttft_ms": "3500"}}, "Expected `float`, got `str` - at `$.slow.ttft_ms`"),
        ({"fail_fast": {"probability": 1.5}}, "$.fail_fast.probability"),
        ({"fail_fast": {"status": 200}}, "$.fail_fast.status"),
        ({"cut": {"how": "gently"}}, "$.cut.how"),
        ({"saturate": {"mode": "full"}}, "$.saturate.mode"),
        ({"restart": {"down_s": -1}}, "$.restart.down_s"),
        ({"crash": True}, "$.crash"),
    ],
)
def test_a_wrong_document_is_refused_with_where_and_why(document: object, complaint: str) -> None:
    with pytest.raises(FaultError) as error:
        Faults().merged(document)
    assert complaint in str(error.value)


def test_faults_add_up_and_null_heals_one() -> None:
    faults = Faults().merged({"slow": {"factor": 3}}).merged({"hang": {}}).merged({"slow": None})
    assert faults.active() == {"hang": {"probability": 1.0}}


async def test_the_admin_endpoint_sets_shows_refuses_and_heals(engine: EngineServer) -> None:
    wrong = await post_faults(engine, {"slow": {"factor": -1}})
    assert wrong.status == 400
    assert "$.slow.factor" in wrong.json()["detail"]
    assert (await probe(engine.url, "POST", "/admin/faults", b"{oops")).status == 400
    done = await post_faults(engine, {"slow": {"factor": 2.5}})
    assert done.json()["faults"] == {"slow": {"factor": 2.5, "ttft_ms": 0.0, "probability": 1.0}}
    assert (await probe(engine.url, "GET", "/admin/faults")).json() == done.json()
    assert (await probe(engine.url, "DELETE", "/admin/faults")).json()["faults"] == {}


async def test_a_sibling_reaches_the_faults_of_any_engine_by_name(fleet: EngineFleet) -> None:
    first, second = fleet.engines
    assert (await post_faults(second, {"drain": {}}, "?engine=engine-0")).json()["engine"] == "engine-0"
    assert first.faults.drain is not None
    assert second.faults.drain is None
    unknown = await post_faults(second, {"drain": {}}, "?engine=nobody")
    assert unknown.status == 404
    assert "engine-0, engine-1" in unknown.json()["detail"]


async def timed(engine: EngineServer, **options: object) -> float:
    started_s = time.perf_counter()
    assert (await ask(engine, **options)).status == 200  # type: ignore[arg-type]
    return time.perf_counter() - started_s


async def test_slow_by_a_factor_stretches_all_steps(engine: EngineServer) -> None:
    healthy_s = await timed(engine)  # eight steps of 8 ms at speed 4: 16 ms and the transport
    await engine.set_faults({"slow": {"factor": 20}})
    assert await timed(engine) > max(0.3, healthy_s)


async def test_slow_to_a_ttft_delays_the_first_token_in_wall_time_and_heals(engine: EngineServer) -> None:
    await engine.set_faults({"slow": {"ttft_ms": 300}})
    assert 0.295 < await timed(engine, max_tokens=1) < 3
    await engine.heal()
    assert await timed(engine, max_tokens=1) < 0.295


async def test_a_delayed_request_counts_as_running_and_its_head_leaves_at_once(engine: EngineServer) -> None:
    await engine.set_faults({"slow": {"ttft_ms": 60_000}})
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    body = json.dumps({**QUESTION, "stream": True}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    page = (await probe(engine.url, "GET", "/metrics")).body
    assert b'vllm:num_requests_running{engine="0",model_name="demo-8b"} 1.0' in page
    writer.close()
    await running(engine, 0)
    assert engine.life.held == 0


async def test_fail_fast_answers_500_within_milliseconds(engine: EngineServer) -> None:
    await engine.set_faults({"fail_fast": {}})
    started_s = time.perf_counter()
    replies = [await ask(engine) for _ in range(20)]
    assert (time.perf_counter() - started_s) / 20 < 0.05
    assert {reply.status for reply in replies} == {500}
    assert replies[0].json()["error"]["code"] == 500


async def test_a_probability_hits_its_share(engine: EngineServer) -> None:
    await engine.set_faults({"fail_fast": {"probability": 0.3, "status": 502}})
    statuses = [(await ask(engine, max_tokens=1)).status for _ in range(100)]
    assert set(statuses) == {200, 502}
    assert 15 <= statuses.count(502) <= 45


async def test_hang_accepts_and_never_answers_while_health_says_200(engine: EngineServer) -> None:
    await engine.set_faults({"hang": {}})
    with pytest.raises(TimeoutError):
        await ask(engine, timeout_s=0.3)
    assert (await probe(engine.url, "GET", "/health")).status == 200
    await running(engine, 0)


@pytest.mark.parametrize(("how", "ending"), [("reset", Ending.RESET), ("eof", Ending.EOF), ("end", Ending.COMPLETE)])
async def test_cut_ends_a_stream_after_some_tokens(engine: EngineServer, how: str, ending: Ending) -> None:
    await engine.set_faults({"cut": {"after_tokens": 3, "how": how}})
    reply = await ask(engine)
    assert reply.status == 200
    assert reply.ending is ending
    assert reply.body.count(b'"content":" ') == 3
    assert b"[DONE]" not in reply.body
    assert b'"finish_reason":"' not in reply.body
    await running(engine, 0)
    assert engine.life.core.gauges().running == 0  # type: ignore[union-attr]


async def test_cut_ends_a_whole_answer_without_any(engine: EngineServer) -> None:
    await engine.set_faults({"cut": {}})
    reply = await ask(engine, stream=False)
    assert (reply.status, reply.ending) == (0, Ending.RESET)


async def test_saturated_as_503(engine: EngineServer) -> None:
    await engine.set_faults({"saturate": {}})
    reply = await ask(engine)
    assert reply.status == 503
    assert "busy" in reply.json()["error"]["message"]


async def test_saturated_inside_a_200_stream_as_vllm_does(engine: EngineServer, shared_dir: Any) -> None:
    await engine.set_faults({"saturate": {"mode": "stream_error"}})
    reply = await ask(engine)
    captured = shared_dir / "captures" / "vllm-0.32.0-cpu" / "burst_reject_stream.body"
    assert (reply.status, reply.body) == (200, captured.read_bytes())
    assert (await ask(engine, stream=False)).status == 503


async def test_saturated_as_429_with_retry_after_and_its_cause(engine: EngineServer) -> None:
    await engine.set_faults({"saturate": {"mode": "kv_429", "retry_after_s": 4}})
    reply = await ask(engine)
    assert reply.status == 429
    assert ("retry-after", "4") in reply.headers
    assert "KV cache" in reply.json()["error"]["message"]


async def test_drain_finishes_running_streams_and_refuses_new_ones_while_healthy(engine: EngineServer) -> None:
    stream = asyncio.create_task(ask(engine, max_tokens=60))
    await running(engine, 1)
    await engine.set_faults({"drain": {}})
    refused = await ask(engine)
    assert refused.status == 500
    assert refused.json()["error"]["message"] == "cannot schedule new futures after shutdown"
    assert (await probe(engine.url, "GET", "/health")).status == 200
    finished = await stream
    assert finished.body.endswith(b"data: [DONE]\n\n")


def started(page: Reply) -> float:
    line = next(line for line in page.body.decode().splitlines() if line.startswith("process_start_time_seconds"))
    return float(line.split()[1])


async def test_restart_drops_streams_refuses_and_comes_back_cold(engine: EngineServer) -> None:
    before = await probe(engine.url, "GET", "/metrics")
    await ask(engine, max_tokens=2)
    stream = asyncio.create_task(ask(engine, max_tokens=5000))
    await running(engine, 1)
    reply = await post_faults(engine, {"restart": {"down_s": 0.3}})
    assert (reply.status, reply.json()["up"]) == (200, False)
    assert (await stream).ending is Ending.RESET
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await probe(engine.url, "GET", "/health")
    await until(lambda: bool(engine.status()["up"]))
    after = await probe(engine.url, "GET", "/metrics")
    assert started(after) > started(before)
    assert b'vllm:generation_tokens_total{engine="0",model_name="demo-8b"} 0.0' in after.body
    assert engine.faults.active() == {}
    assert (await ask(engine)).status == 200


async def test_a_crashed_engine_refuses_until_a_sibling_heals_it(fleet: EngineFleet) -> None:
    crashed, sibling = fleet.engines
    assert (await post_faults(crashed, {"crash": {}})).status == 200
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await ask(crashed)
    assert (await ask(sibling)).status == 200
    healed = await probe(sibling.url, "DELETE", "/admin/faults?engine=engine-0")
    assert healed.json()["up"]
    assert (await ask(crashed)).status == 200


async def test_a_slowdown_set_before_a_restart_is_still_there_after_it(engine: EngineServer) -> None:
    await engine.set_faults({"slow": {"factor": 20}, "restart": {"down_s": 0}})
    await until(lambda: bool(engine.status()["up"]))
    assert await timed(engine) > 0.3


async def test_wrong_faults_change_nothing(engine: EngineServer) -> None:
    await engine.set_faults({"hang": {"probability": 0.0}})
    with pytest.raises(FaultError):
        await engine.set_faults({"drain": {}, "cut": {"after_tokens": -1}})
    assert set(engine.faults.active()) == {"hang"}


async def test_a_limit_counts_what_runs_and_the_gauges_show_no_queue(engine: EngineServer) -> None:
    """As vLLM's `--max-num-queued-reqs` does: seen on a real one, docs/real-engines.md."""
    await engine.set_faults({"limit": {"requests": 2, "in_stream": 0}})
    streams = [asyncio.create_task(ask(engine, max_tokens=2000)) for _ in range(2)]
    await running(engine, 2)
    assert [(await ask(engine, stream=stream)).status for stream in (True, False)] == [503, 503]
    await engine.set_faults({"limit": {"requests": 2, "in_stream": 1}})
    refused = await ask(engine)
    assert (refused.status, refused.ending) == (200, Ending.COMPLETE)
    assert b"currently busy" in refused.body
    assert refused.body.endswith(b"data: [DONE]\n\n")
    page = (await probe(engine.url, "GET", "/metrics")).body
    assert b'vllm:num_requests_waiting{engine="0",model_name="demo-8b"} 0.0' in page
    assert b'vllm:admission_rejections_total{model_name="demo-8b",reason="max_num_queued_reqs"} 3.0' in page
    assert all(reply.body.endswith(b"data: [DONE]\n\n") for reply in await asyncio.gather(*streams))
    assert (await ask(engine)).status == 200


async def test_a_killed_core_ends_streams_in_good_form_then_is_unhealthy_then_gone(fleet: EngineFleet) -> None:
    """As vLLM's API server does when its engine core is killed: seen on a real one, docs/real-engines.md."""
    engine, sibling = fleet.engines
    before = started(await probe(engine.url, "GET", "/metrics"))
    stream, plain = (asyncio.create_task(ask(engine, stream=stream, max_tokens=5000)) for stream in (True, False))
    await running(engine, 2)
    await until(lambda: engine.life.core.gauges().generation_tokens > 10)  # type: ignore[union-attr]
    await post_faults(sibling, {"kill_core": {"exit_s": 0.5}}, "?engine=engine-0")
    told = await stream
    assert (told.status, told.ending) == (200, Ending.COMPLETE)
    assert told.body.endswith(b'"code": 500}}\n\ndata: [DONE]\n\n')
    assert (await plain).status == 500
    assert (await probe(engine.url, "GET", "/health")).status == 503
    assert (await ask(engine)).status == 500
    await until(lambda: not engine.status()["up"])
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await probe(engine.url, "GET", "/health")
    await engine.heal()
    assert (await ask(engine)).status == 200
    assert started(await probe(engine.url, "GET", "/metrics")) > before


async def test_a_killed_core_can_be_healed_before_it_is_gone(engine: EngineServer) -> None:
    await engine.set_faults({"kill_core": {"exit_s": 60}})
    assert (await probe(engine.url, "DELETE", "/admin/faults")).status == 200
    assert (await ask(engine)).status == 200


async def test_a_stopped_engine_refuses_and_what_runs_goes_silent_until_the_client_leaves(fleet: EngineFleet) -> None:
    """As vLLM does by default when it is told to stop: seen on a real one, docs/real-engines.md."""
    engine, sibling = fleet.engines
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    body = json.dumps({**QUESTION, "stream": True, "max_tokens": 100_000}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b'"content":" ')
    await post_faults(sibling, {"stop": {}}, "?engine=engine-0")
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await probe(engine.url, "GET", "/health")
    await asyncio.sleep(0.2)  # what had been sent before
    await reader.read(2**20)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 1.0)
    assert engine.life.in_flight == 1
    writer.close()
    await running(engine, 0)
    await engine.heal()
    assert (await ask(engine)).status == 200
