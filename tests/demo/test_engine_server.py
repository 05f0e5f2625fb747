"""The simulated engine over real sockets, beside a real vLLM's captured output."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evenload.demo.engine_server import EngineFleet, EngineServer
from evenload.demo.http_probe import Ending, Reply, probe, until
from evenload.demo.openai_request import Kind, parse
from evenload.router.sse import SseObserver
from evenload.router.sse_messages import MessagesObserver
from evenload.router.sse_responses import ResponsesObserver
from evenload.sim.provider import ProviderModel
from tests.absence import lacking

CHAT = {"messages": [{"role": "user", "content": "hello there, how are you?"}]}


async def call(server: EngineServer, method: str, path: str, document: object = None, raw: bytes = b"") -> Reply:
    return await probe(server.url, method, path, raw if document is None else json.dumps(document).encode())


@pytest.fixture
async def engine() -> AsyncIterator[EngineServer]:
    server = EngineServer(model="tiny", speed=20.0, seed=7)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def captures(shared_dir: Path) -> Path:
    folder = shared_dir / "captures" / "vllm-0.32.0-cpu"
    if not folder.exists():
        lacking(f"captures of a real vLLM in {folder}")
    return folder


def shape(value: object) -> object:
    """Keys in order and types of values; texts, numbers and lengths may differ."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def ordered(value: object) -> str:
    return json.dumps(shape(value))


def payloads(body: bytes) -> list[Any]:
    frames = [frame for frame in body.split(b"\n\n") if frame.strip()]
    assert all(frame.startswith(b"data: ") for frame in frames)
    return [b"[DONE]" if frame == b"data: [DONE]" else json.loads(frame[6:]) for frame in frames]


def stream_shapes(body: bytes) -> list[str]:
    """Shapes of the events, equal neighbours merged: the number of tokens does not matter."""
    shapes = [item.decode() if isinstance(item, bytes) else ordered(item) for item in payloads(body)]
    return [item for index, item in enumerate(shapes) if index == 0 or shapes[index - 1] != item]


def names_of(headers: list[tuple[str, str]]) -> list[str]:
    return [name for name, _ in headers]


def captured_head(path: Path) -> tuple[int, list[str]]:
    lines = path.read_text().strip().splitlines()
    return int(lines[0].split()[1]), [line.partition(":")[0] for line in lines[1:]]


@pytest.mark.parametrize(
    ("name", "path", "options"),
    [
        ("chat_sse_plain", "/v1/chat/completions", {}),
        ("chat_sse_usage", "/v1/chat/completions", {"stream_options": {"include_usage": True}}),
        (
            "chat_sse_continuous_usage",
            "/v1/chat/completions",
            {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        ("completions_sse", "/v1/completions", {"stream_options": {"include_usage": True}}),
    ],
)
async def test_streams_have_the_events_and_headers_of_vllm(
    engine: EngineServer, captures: Path, name: str, path: str, options: dict[str, object]
) -> None:
    question: dict[str, object] = {"prompt": "one two"} if path == "/v1/completions" else dict(CHAT)
    reply = await call(
        engine, "POST", path, {**question, "stream": True, "max_tokens": 12, "ignore_eos": True, **options}
    )
    assert stream_shapes(reply.body) == stream_shapes((captures / f"{name}.body").read_bytes())
    assert (reply.status, names_of(reply.headers)) == captured_head(captures / f"{name}.headers")
    assert reply.ending is Ending.COMPLETE


@pytest.mark.parametrize(
    ("name", "path", "question"),
    [("chat_json", "/v1/chat/completions", CHAT), ("completions_json", "/v1/completions", {"prompt": "a b c"})],
)
async def test_whole_answers_have_the_shape_of_vllm(
    engine: EngineServer, captures: Path, name: str, path: str, question: dict[str, object]
) -> None:
    reply = await call(engine, "POST", path, {**question, "max_tokens": 8, "ignore_eos": True})
    assert ordered(reply.json()) == ordered(json.loads((captures / f"{name}.body").read_bytes()))
    assert (reply.status, names_of(reply.headers)) == captured_head(captures / f"{name}.headers")
    assert reply.json()["usage"]["completion_tokens"] == 8


class Api(NamedTuple):
    """An API whose events have names: capture, path, a question, the field of its limit, who reads its stream."""

    capture: str
    path: str
    question: dict[str, Any]
    limit: str
    observer: type[SseObserver]


NAMED = [
    Api("anthropic_messages_sse", "/v1/messages", CHAT, "max_tokens", MessagesObserver),
    Api("responses_sse", "/v1/responses", {"input": "hello there"}, "max_output_tokens", ResponsesObserver),
]


def named(body: bytes) -> list[tuple[str, Any]]:
    """Name and data of each event, equal neighbours merged."""
    found: list[tuple[str, Any]] = []
    for frame in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        if frame.strip():
            name, data = frame.split(b"\n")
            event = json.loads(data.removeprefix(b"data: "))
            assert name == b"event: " + event["type"].encode()
            if not found or found[-1][0] != event["type"]:
                found.append((event["type"], event))
    return found


def is_part(of: object, whole: object) -> bool:
    """Whether all keys are there, with values of the same types."""
    if isinstance(of, dict) and isinstance(whole, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in of.items())
    if isinstance(of, list) and isinstance(whole, list):
        return all(is_part(one, other) for one, other in zip(of, whole, strict=False))
    return type(of) is type(whole) or None in (of, whole)


@pytest.mark.parametrize("api", NAMED, ids=lambda api: api.path)
async def test_named_events_are_those_of_vllm(engine: EngineServer, captures: Path, api: Api) -> None:
    reply = await call(engine, "POST", api.path, {**api.question, "stream": True, api.limit: 8, "ignore_eos": True})
    ours, theirs = named(reply.body), named((captures / f"{api.capture}.body").read_bytes())
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    for (kind, event), (_, like) in zip(ours, theirs, strict=True):
        assert is_part(event, like), kind
    seen = api.observer()
    seen.feed(reply.body)
    assert (seen.finished, seen.error, seen.completion_tokens, seen.content_chunks) == (True, None, 8, 8)


@pytest.mark.parametrize("api", NAMED, ids=lambda api: api.path)
async def test_whole_messages_and_responses_end_as_their_streams(engine: EngineServer, api: Api) -> None:
    whole = (await call(engine, "POST", api.path, {**api.question, api.limit: 8, "ignore_eos": True})).json()
    if api.path == "/v1/messages":
        assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("max_tokens", 8)
        assert len(whole["content"][0]["text"].split()) == 8
    else:
        assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert len(whole["output"][0]["content"][0]["text"].split()) == whole["usage"]["output_tokens"] == 8
    await engine.set_faults({"saturate": {"mode": "stream_error"}})
    busy = api.observer()
    busy.feed((await call(engine, "POST", api.path, {**api.question, "stream": True, api.limit: 8})).body)
    assert busy.error is not None
    assert busy.error.verdict.kind == "saturated"


async def test_a_message_needs_a_limit_and_what_stands_apart_is_prompt_too(engine: EngineServer) -> None:
    assert (await call(engine, "POST", "/v1/messages", CHAT)).status == 400

    def tokens(kind: Kind, document: object) -> int:
        return parse(kind, json.dumps(document).encode(), model="m", context_tokens=1000).prompt_tokens

    blocks = [{"type": "text", "text": "x" * 8}]
    assert tokens(Kind.MESSAGE, {"max_tokens": 1, "messages": [{"role": "user", "content": "x" * 4}]}) == 1
    assert tokens(Kind.MESSAGE, {"max_tokens": 1, "system": blocks, "messages": [{"content": "x" * 4}]}) == 3
    assert tokens(Kind.RESPONSE, {"instructions": "x" * 8, "input": [{"role": "user", "content": blocks}]}) == 4


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("err_badjson", b"{not json"),
        ("err_missing_messages", b'{"model":"tiny"}'),
        ("err_404_model", b'{"model":"nope","messages":[]}'),
        ("err_validation", b'{"temperature":-3,"messages":[]}'),
    ],
)
async def test_errors_are_those_of_vllm_byte_for_byte(
    engine: EngineServer, captures: Path, name: str, raw: bytes
) -> None:
    reply = await call(engine, "POST", "/v1/chat/completions", raw=raw)
    assert reply.body == (captures / f"{name}.body").read_bytes().rstrip(b"\n")
    assert (reply.status, names_of(reply.headers)) == captured_head(captures / f"{name}.headers")


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("err_400_context", {"messages": [{"role": "user", "content": "word" * 513}]}),
        ("err_400_max_tokens", {"messages": [], "max_tokens": 5000}),
    ],
)
async def test_length_errors_are_those_of_vllm_byte_for_byte(
    captures: Path, name: str, document: dict[str, object]
) -> None:
    server = EngineServer(model="tiny", context_tokens=512)
    await server.start()
    try:
        reply = await call(server, "POST", "/v1/chat/completions", document)
    finally:
        await server.stop()
    assert reply.body == (captures / f"{name}.body").read_bytes().rstrip(b"\n")
    assert reply.status == 400


async def test_a_full_queue_answers_503_as_vllm_does(captures: Path) -> None:
    server = EngineServer(model="tiny", queue_max=0)
    await server.start()
    try:
        first = asyncio.create_task(call(server, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 30}))
        await until(lambda: server.life.in_flight == 1)
        reply = await call(server, "POST", "/v1/chat/completions", {**CHAT, "stream": True})
        metrics = (await call(server, "GET", "/metrics")).body.decode()
        assert (await first).status == 200
    finally:
        await server.stop()
    assert reply.body == (captures / "err_queue_full_stream.body").read_bytes().rstrip(b"\n")
    assert (reply.status, names_of(reply.headers)) == captured_head(captures / "err_queue_full_stream.headers")
    assert 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 1.0' in metrics


async def test_unknown_paths_and_methods_are_refused(engine: EngineServer, captures: Path) -> None:
    assert (await call(engine, "GET", "/nope")).body == (captures / "err_404_path.body").read_bytes().rstrip(b"\n")
    assert (await call(engine, "GET", "/v1/chat/completions")).status == 405
    assert (await call(engine, "PUT", "/admin/faults")).status == 405


async def test_models_health_and_version_look_like_vllm(engine: EngineServer, captures: Path) -> None:
    models = (await call(engine, "GET", "/v1/models")).json()
    assert ordered(models) == ordered(json.loads((captures / "v1_models.json").read_text()))
    health = await call(engine, "GET", "/health")
    assert (health.status, health.body) == (200, b"")
    assert names_of(health.headers) == ["date", "server", "content-length", "vary"]
    assert (await call(engine, "GET", "/version")).body == (captures / "version.json").read_bytes().rstrip(b"\n")
    assert (await call(engine, "GET", "/load")).json() == {"server_load": 0}


def series(page: str) -> dict[str, set[str]]:
    """Metric names and the label names of their samples."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, labels = re.match(r"([a-zA-Z0-9_:]+)(?:\{(.*)\})? ", line).groups()  # type: ignore[union-attr]
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


async def test_metrics_have_the_names_types_and_labels_of_vllm(engine: EngineServer, captures: Path) -> None:
    await call(engine, "POST", "/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 5, "ignore_eos": True})
    page = (await call(engine, "GET", "/metrics")).body.decode()
    real = (captures / "metrics_saturated_1.txt").read_text()
    ours, theirs = series(page), series(real)
    assert ours.keys() <= theirs.keys()
    for name, labels in ours.items():
        assert labels <= theirs[name] if name == "vllm:cache_config_info" else labels == theirs[name], name
    comments = {line for line in real.splitlines() if line.startswith("#")}
    assert {line for line in page.splitlines() if line.startswith("#")} <= comments
    for name in ("running", "waiting"):
        assert f'vllm:num_requests_{name}{{engine="0",model_name="tiny"}} 0.0' in page
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1.0' in page
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 5.0' in page
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 1.0' in page
    steps = re.search(r'^vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} (.+)$', page, re.MULTILINE)
    assert steps is not None
    assert float(steps[1]) >= 5.0, "a token each, at least"
    assert re.search(r"^process_start_time_seconds 1\.\d+e\+09$", page, re.MULTILINE)


async def test_histogram_buckets_of_times_and_steps_are_those_of_vllm(engine: EngineServer, captures: Path) -> None:
    page = (await call(engine, "GET", "/metrics")).body.decode()
    real = (captures / "metrics_saturated_1.txt").read_text()
    times = ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")
    for name in (*times, "iteration_tokens_total"):
        pattern = rf'vllm:{name}_bucket{{engine="0",le="([^"]+)"'
        assert re.findall(pattern, page) == re.findall(pattern, real)


async def test_the_role_comes_first_and_all_tokens_are_there(engine: EngineServer) -> None:
    reply = await call(
        engine, "POST", "/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 6, "ignore_eos": True}
    )
    first, *tokens, last, done = payloads(reply.body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) + 1 == 6
    assert all(token["choices"][0]["delta"]["content"] for token in tokens)
    assert last["choices"][0]["finish_reason"] == "length"
    assert done == b"[DONE]"


async def test_open_lengths_are_drawn_and_the_same_seed_draws_the_same() -> None:
    async def texts() -> list[str]:
        server = EngineServer(speed=1000.0, seed=3)
        await server.start()
        try:
            replies = [await call(server, "POST", "/v1/chat/completions", CHAT) for _ in range(5)]
        finally:
            await server.stop()
        assert all(r.json()["choices"][0]["finish_reason"] == "stop" for r in replies)
        return [r.json()["choices"][0]["message"]["content"] for r in replies]

    first = await texts()
    assert first == await texts()
    assert len({len(text) for text in first}) > 1


async def test_a_least_number_of_tokens_is_honoured(engine: EngineServer) -> None:
    document = {**CHAT, "min_tokens": 900, "max_completion_tokens": 901}
    usage = (await call(engine, "POST", "/v1/chat/completions", document)).json()["usage"]
    assert usage["completion_tokens"] in {900, 901}


async def test_embeddings_answer_one_vector_per_text(engine: EngineServer) -> None:
    reply = (await call(engine, "POST", "/v1/embeddings", {"input": ["one", "two two"]})).json()
    assert [item["index"] for item in reply["data"]] == [0, 1]
    assert all(isinstance(number, float) for number in reply["data"][0]["embedding"])
    assert reply["usage"]["prompt_tokens"] == 3


def test_prompt_tokens_are_a_quarter_of_the_bytes() -> None:
    def tokens(kind: Kind, document: object) -> int:
        return parse(kind, json.dumps(document).encode(), model="m", context_tokens=1000).prompt_tokens

    assert tokens(Kind.CHAT, {"messages": [{"role": "user", "content": "x" * 101}]}) == 26
    parts = [{"type": "text", "text": "x" * 8}, {"type": "image_url", "image_url": {"url": "http://x"}}]
    assert tokens(Kind.CHAT, {"messages": [{"role": "user", "content": parts}]}) == 2
    assert tokens(Kind.CHAT, {"messages": [{"role": "user", "content": "日本"}]}) == 2
    assert tokens(Kind.COMPLETION, {"prompt": [1, 2, 3]}) == 3
    assert tokens(Kind.COMPLETION, {"prompt": ""}) == 1


async def test_a_client_that_leaves_frees_its_sequence(engine: EngineServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 100_000, "ignore_eos": True}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b'"content":" ')
    assert engine.life.in_flight == 1
    writer.close()
    await until(lambda: engine.life.in_flight == 0)
    gauges = engine.life.core.gauges()  # type: ignore[union-attr]
    assert (gauges.running, gauges.kv_usage) == (0, 0.0)


async def test_requests_on_one_connection_are_answered_in_turn(engine: EngineServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    body = json.dumps({**CHAT, "max_tokens": 3}).encode()
    post = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    writer.write(post + b"GET /version HTTP/1.1\r\n\r\n" + b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
    data = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", data)] == [200, 200, 200]
    assert data.index(b"chat.completion") < data.index(b'{"version"')


async def test_what_is_not_http_is_refused(engine: EngineServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    writer.write(b"hello\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(-1), 5)).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_a_provider_has_no_gauges_and_limits_its_rate() -> None:
    server = EngineServer(provider=ProviderModel(ttft_ms=5.0, per_token_ms=1.0, rate_limit_rps=1.0))
    await server.start()
    try:
        assert (await call(server, "GET", "/metrics")).status == 404
        assert (await call(server, "GET", "/health")).status == 404
        assert (await call(server, "GET", "/v1/models")).status == 200
        assert (await call(server, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 3})).status == 200
        refused = await call(server, "POST", "/v1/chat/completions", CHAT)
        assert refused.status == 429
        assert ("retry-after", "1") in refused.headers
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    finally:
        await server.stop()


async def test_engines_of_one_loop_need_different_names() -> None:
    with pytest.raises(ValueError, match="unique"):
        await EngineFleet([EngineServer(name="a"), EngineServer(name="a")]).start()


def test_an_engine_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="speed must be positive"):
        EngineServer(speed=0.0)
    with pytest.raises(ValueError, match="unknown engine preset"):
        EngineServer(preset="abacus")
    with pytest.raises(ValueError, match="context_tokens"):
        EngineServer(context_tokens=10**9)
