"""Any bytes, split anywhere: the observer sees the same, keeps little and never raises; requests are served or refused.

`FUZZ_EXAMPLES=100000` looks longer; a failure prints the example and how to replay it.
"""

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenload.router import sse
from evenload.router.classify import classify, classify_error, retry_after_ms
from evenload.router.fake_wire import DONE, content, error_frame, finish, response, role, usage
from evenload.router.sse import SseObserver, error_payload
from evenload.router.sse_chat import CHOICES_MAX, ChatObserver
from evenload.router.sse_media import MediaObserver
from evenload.router.sse_messages import MessagesObserver
from evenload.router.sse_responses import ResponsesObserver
from tests.router.stage import Fleet, fleet

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
FRAME_BYTES_SMALL = 60  # so that frames over the limit are usual
often = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

# Streams: what engines send, the same with anything in place of any value, and noise.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def any_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some of the fields, each as it should be or anything at all."""
    mostly = {name: st.one_of(value, value, value, VALUES) for name, value in fields.items()}
    return st.fixed_dictionaries({}, optional=mostly)


CODES = st.sampled_from([400, 429, 500, 503, "429", "abc", 0, -1, 10**30])
ERRORS = any_of(message=st.sampled_from(["busy", "queue is full"]), type=st.text(max_size=20), code=CODES)
DELTAS = any_of(content=st.text(max_size=5), role=st.just("assistant"), tool_calls=st.just([{}]))
CHOICES = any_of(
    index=st.integers(-1, 3), delta=DELTAS, text=st.text(max_size=3), finish_reason=st.sampled_from(["stop", "abort"])
)
USAGES = any_of(prompt_tokens=st.integers(-1, 2**60), completion_tokens=st.integers(0, 99))
PROGRESS = any_of(choices=st.lists(CHOICES, min_size=1, max_size=2), usage=USAGES)
FAILURE = any_of(
    error=ERRORS, object=st.just("error"), code=CODES, error_type=st.text(max_size=9), message=st.text(max_size=9)
)
TYPES = st.sampled_from(
    [
        "message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "ping", "error",
        "response.created", "response.output_text.delta", "response.output_item.added", "response.completed",
        "response.incomplete", "response.failed", "transcript.text.delta", "transcript.text.done",
        "speech.audio.delta", "speech.audio.done", "image_generation.completed",
    ]
)  # fmt: skip
COUNTS = any_of(
    input_tokens=st.integers(-1, 2**60), cache_read_input_tokens=st.integers(0, 99),
    cache_creation_input_tokens=st.integers(0, 99), output_tokens=st.integers(0, 99),
)  # fmt: skip
EVENTS = any_of(
    type=TYPES, delta=any_of(text=st.text(max_size=3), partial_json=st.just("{")) | st.text(max_size=3),
    content_block=any_of(type=st.sampled_from(["text", "tool_use"]), text=st.text(max_size=3)), usage=COUNTS,
    message=any_of(usage=COUNTS) | st.just("no"), response=any_of(usage=COUNTS, error=ERRORS), error=ERRORS,
    item=any_of(type=st.sampled_from(["message", "function_call"])), sequence_number=st.integers(0, 9), code=CODES,
)  # fmt: skip
FRAMES = st.one_of(PROGRESS, PROGRESS, FAILURE, EVENTS)
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
PIECES = st.one_of(
    st.tuples(st.just(b"data: ") | st.just(b"data:"), FRAMES, LINE_ENDS).map(
        lambda parts: parts[0] + json.dumps(parts[1]).encode() + parts[2] * 2
    ),
    st.tuples(TYPES, EVENTS, LINE_ENDS).map(
        lambda parts: f"event: {parts[0]}\ndata: {json.dumps(parts[1])}\n\n".encode().replace(b"\n", parts[2])
    ),
    st.tuples(st.sampled_from([b"data", b"event", b"id", b"retry", b"", b"x"]), st.binary(max_size=9), LINE_ENDS).map(
        lambda parts: parts[0] + b":" + parts[1] + parts[2]
    ),
    st.sampled_from(
        [
            role(), content("Hi"), finish(), usage(9, 2), DONE, error_frame(503, "busy"), b"event: error\n",
            b"\n", b"\r", b"\r\n", b"data: {", b"data: {}\n\n", b"data:\n\n", b": ping\n\n", b"\xef\xbb\xbf", b"\0",
            b"data: " + b"[" * 3000 + b"\n\n", b'data: {"choices":' + b'{"a":' * 3000 + b"\n\n",
        ]
    ),
    st.binary(max_size=30),
)  # fmt: skip
STREAMS = st.lists(PIECES, max_size=12).map(b"".join)


def observe(kind: type[SseObserver], chunks: list[bytes]) -> dict[str, Any]:
    """Feed chunks; returns all that the observer tells."""
    observer = kind()
    for chunk in chunks:
        observer.feed(chunk)
        kept = len(observer._partial)
        assert kept <= sse.FRAME_BYTES_MAX + 2, f"{kept} bytes are kept"
    ends_whole = observer.at_boundary
    observer.close()
    if isinstance(observer, ChatObserver):
        assert len(observer._open) <= CHOICES_MAX
        assert len(observer._ended) <= CHOICES_MAX
    names = [name for name in SseObserver.__slots__ if not name.startswith("_")]
    return {name: getattr(observer, name) for name in [*names, "finished", "output_tokens"]} | {"whole": ends_whole}


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


# One test for all, since to draw a stream takes longer than eight observers take to see it.
KINDS: tuple[type[SseObserver], ...] = (ChatObserver, MessagesObserver, ResponsesObserver, MediaObserver)
LIMITS = (FRAME_BYTES_SMALL, sse.FRAME_BYTES_MAX)
END_BYTES = sse._END_BYTES


@often
@given(STREAMS, st.lists(st.integers(0, 10_000), max_size=30))
def test_any_bytes_split_anywhere_are_seen_as_when_they_come_at_once(data: bytes, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for kind, frame_bytes_max in itertools.product(KINDS, LIMITS):
            patch.setattr(sse, "FRAME_BYTES_MAX", frame_bytes_max)
            patch.setattr(sse, "_END_BYTES", min(END_BYTES, frame_bytes_max // 2))
            at_once = observe(kind, [data])
            assert observe(kind, cut(data, cuts)) == at_once, (kind, frame_bytes_max)
            assert observe(kind, [data[at : at + 1] for at in range(len(data))]) == at_once, (kind, frame_bytes_max)


@often
@given(STREAMS)
def test_an_error_taken_out_of_any_stream_is_one_json_object(data: bytes) -> None:
    payload = error_payload(data)
    assert payload is None or isinstance(json.loads(payload)["error"], dict)


@often
@given(
    st.integers(300, 599),
    st.lists(st.tuples(st.sampled_from([b"retry-after", b"retry-after-ms", b"x"]), st.binary(max_size=20)), max_size=3),
    st.binary(max_size=50) | st.one_of(FRAMES, VALUES).map(lambda value: json.dumps(value).encode()),
    VALUES,
)
def test_any_error_gets_a_verdict(status: int, headers: list[tuple[bytes, bytes]], body: bytes, error: Any) -> None:
    verdict = classify(status, headers, body)
    wait_ms = retry_after_ms(headers, 0.0)
    assert verdict.retry_after_ms == wait_ms
    assert wait_ms is None or wait_ms >= 0
    short = classify_error(error)[2]
    assert short.isascii()
    assert len(short) <= 40


# Requests: through a real server and the real router, before an engine that is always good.

GOOD = response(200, b'{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')
FINE = b'{"model":"tiny","messages":[]}'
BODIES = st.one_of(
    any_of(
        model=st.text(max_size=12) | st.just("tiny"), stream=st.booleans(), n=st.integers(-1, 3),
        max_tokens=st.integers(-1, 10**6), max_completion_tokens=st.sampled_from([1e308, 1e-300, -0.0, 10**25]),
        messages=st.lists(VALUES, max_size=2),
    ).map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [
            b'{"model":"\\ud800"}', b'{"model":"a\\u0000b"}', b'{"model":"","stream":null}', b'{"model":"m","n":1e999}',
            b'{"model":"m","n":1e400,"max_tokens":-1e400}', b'{"model":"m","model":"n"}', b"[" * 5000, b'{"model":',
            b'\xef\xbb\xbf{"model":"m"}', b'{"model":"' + b"m" * 100_000 + b'"}', b'{"model":"m","max_tokens":1e300}',
        ]
    ),
    st.binary(max_size=60),
)  # fmt: skip
TOKENS = st.text("abcxyz-_.!#$%&'*+^`|~0129", min_size=1, max_size=12).map(str.encode)
NAMES = st.sampled_from(
    b"Accept User-Agent X-Request-Id Connection OpenAI-Project traceparent Cookie Transfer-Encoding Content-Length "
    b"Expect Host Upgrade TE".split()
)
ODD = st.sampled_from([b"chunked", b"0", b"5", b"-1", b"+5", b"9" * 30, b"close", b"100-continue"])
HEADERS = st.lists(st.tuples(NAMES | TOKENS, st.binary(max_size=20) | ODD), max_size=4)
PATHS = st.sampled_from([b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/v1/nonsense", b"/", b"*"])
CUTS = st.lists(st.integers(0, 10_000), max_size=4)
QUERIES = st.just(b"") | st.binary(max_size=12).map(lambda query: b"?" + query)
TARGETS = st.tuples(PATHS, QUERIES).map(b"".join)


PATIENCE_S = 15.0
SILENT_S = 0.1  # noise may be half a request, for whose rest the router waits; nothing comes back then


@dataclass
class World:
    """A router that serves on a loop of its own."""

    runner: asyncio.Runner
    fleet: Fleet

    def exchange(self, data: bytes, cuts: list[int], patience_s: float = PATIENCE_S) -> tuple[list[int], list[bytes]]:
        """Send bytes in pieces; returns the statuses of what came back, and the targets of what the engine got."""
        engine = self.fleet.engines["a"]
        engine.requests.clear()
        got = self.runner.run(_exchange(self.fleet.url, cut(data, cuts), patience_s))
        statuses = [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]]
        return [status for status in statuses if status != 100], [request.path for request in engine.requests]


async def _exchange(url: str, pieces: list[bytes], patience_s: float) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    got = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.0005 if len(pieces) > 1 else 0)  # so that the router reads it before the next
        while piece := await asyncio.wait_for(reader.read(65536), patience_s):
            got += piece
    writer.close()
    return got


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        entered = fleet([GOOD], models=("*",))
        yield World(runner, runner.run(entered.__aenter__()))
        runner.run(entered.__aexit__(None, None, None))


@often
@given(BODIES, CUTS)
def test_any_body_is_served_or_refused(world: World, body: bytes, cuts: list[int]) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
        body
    )
    statuses, asked = world.exchange(head + body, cuts)
    assert statuses in ([200], [400], [404])
    assert len(asked) == (1 if statuses == [200] else 0)


@often
@given(TARGETS, HEADERS, st.just(FINE) | BODIES, CUTS)
def test_any_request_is_served_or_refused(
    world: World, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes, cuts: list[int]
) -> None:
    lines = [b"POST %b HTTP/1.1" % target, b"host: x", b"content-length: %d" % len(body)]
    lines += [b"%b: %b" % header for header in headers]
    statuses, asked = world.exchange(b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n" + body, cuts, SILENT_S)
    assert all(status < 500 for status in statuses), statuses
    assert len(asked) <= 1, asked
    assert all(path.startswith((b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings")) for path in asked)
    assert world.exchange(_plain_request(), cuts)[0] == [200]


def _plain_request() -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(FINE)
    return head + FINE
