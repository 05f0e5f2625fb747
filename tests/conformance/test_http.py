"""HTTP on both sides is kept apart"""

import gzip
import json

import pytest

from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Cut,
    chunk,
    content,
    finish,
    response,
    role,
)

from .asks import PLAIN_ASK, STREAM_ASK, assert_good
from .client import ask, raw
from .engines import PLAIN, PLAIN_BODY, PLAIN_TEXT, STREAM, Engines
from .target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

GOOD_FRAMES = role() + content("Hel") + content("lo") + finish() + DONE


async def test_hop_by_hop_headers_of_the_client_stop_here(target: Target, engines: Engines) -> None:
    sent = [
        (b"connection", b"close, x-named"),
        (b"x-named", b"by connection"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"proxy-authorization", b"Basic eDp5"),
        (b"upgrade", b"h2c"),
    ]
    assert_good(await ask(target.url, PLAIN_ASK, *sent), PLAIN_TEXT)
    passed = {name for name, _ in sent[1:]} & set(engines.asked[0].headers)
    assert not passed, f"reached the engine: {sorted(passed)}"


async def test_hop_by_hop_headers_of_the_engine_stop_here(target: Target, engines: Engines) -> None:
    back = [
        ("connection", "x-named"),
        ("x-named", "by connection"),
        ("keep-alive", "timeout=7"),
        ("proxy-authenticate", "Basic"),
    ]
    engines.script([response(200, PLAIN_BODY, *back)])
    reply = await ask(target.url, PLAIN_ASK)
    assert_good(reply, PLAIN_TEXT)
    passed = [(name, value) for name, value in reply.headers if name in (b"x-named", b"proxy-authenticate")]
    passed += [(name, value) for name, value in reply.headers if name == b"keep-alive" and value == b"timeout=7"]
    assert not passed, f"reached the client: {passed}"


async def test_the_engine_is_told_its_own_host(target: Target, engines: Engines) -> None:
    await ask(target.url, PLAIN_ASK)
    host = engines.asked[0].headers.get(b"host", b"").decode()
    own = {f"127.0.0.1:{engine.port}" for engine in engines.each}
    assert host in own, f"the engine was told the host {host!r}"


async def test_the_clients_credential_does_not_reach_the_engine(target: Target, engines: Engines) -> None:
    sent = [(b"authorization", b"Bearer sk-client"), (b"api-key", b"sk-client"), (b"x-api-key", b"sk-client")]
    await ask(target.url, PLAIN_ASK, *sent, (b"cookie", b"session=sk-client"))
    if not engines.asked:
        pytest.skip("this proxy checks the credential itself")
    seen = sorted(name for name, value in engines.asked[0].headers.items() if b"sk-client" in value)
    assert not seen, f"reached the engine: {seen}"


async def test_the_clients_request_id_goes_both_ways(target: Target, engines: Engines) -> None:
    reply = await ask(target.url, PLAIN_ASK, (b"x-request-id", b"of-the-client-1"))
    up, down = engines.asked[0].headers.get(b"x-request-id"), reply.header(b"x-request-id")
    assert (up, down) == (b"of-the-client-1", b"of-the-client-1"), f"to the engine {up!r}, to the client {down!r}"


async def test_a_request_without_an_id_gets_one_that_goes_both_ways(target: Target, engines: Engines) -> None:
    reply = await ask(target.url, PLAIN_ASK)
    up, down = engines.asked[0].headers.get(b"x-request-id"), reply.header(b"x-request-id")
    assert up, "the engine got none"
    assert up == down, f"to the engine {up!r}, to the client {down!r}"


async def test_interim_answers_of_the_engine_do_not_end_the_request(target: Target, engines: Engines) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n"
    engines.script([interim + response(200, PLAIN_BODY)])
    assert_good(await ask(target.url, PLAIN_ASK), PLAIN_TEXT)


async def test_a_client_that_expects_100_continue_is_served(target: Target, engines: Engines) -> None:
    body = json.dumps(PLAIN_ASK).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    got = await raw(target.url, head + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    assert b"HTTP/1.1 200" in got, f"got {got[:120]!r}"


async def test_a_client_of_http_1_0_gets_no_chunks(target: Target, engines: Engines) -> None:
    engines.script(STREAM)
    body = json.dumps(STREAM_ASK).encode()
    head = b"POST /v1/chat/completions HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\n"
    got = await raw(target.url, head + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert b"[DONE]" in got, f"got {got[:120]!r}"
    assert b"transfer-encoding: chunked" not in got.lower(), "an answer in chunks, which HTTP/1.0 does not know"


async def test_a_compressed_answer_can_be_read(target: Target, engines: Engines) -> None:
    engines.script([response(200, gzip.compress(PLAIN_BODY), ("content-encoding", "gzip"))])
    reply = await ask(target.url, PLAIN_ASK, (b"accept-encoding", b"gzip"))
    assert reply.status == 200, f"expected an answer, got {reply}"
    if reply.header(b"content-encoding") == b"gzip":
        reply.body = gzip.decompress(reply.body)
    assert_good(reply, PLAIN_TEXT)


async def test_a_compressed_stream_can_be_read(target: Target, engines: Engines) -> None:
    packed = gzip.compress(GOOD_FRAMES)
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    engines.script([head, chunk(packed[:50]), chunk(packed[50:]), END])
    reply = await ask(target.url, STREAM_ASK, (b"accept-encoding", b"gzip"))
    assert reply.status == 200, f"expected an answer, got {reply}"
    if reply.header(b"content-encoding") == b"gzip":
        reply.body = gzip.decompress(reply.body)
    assert_good(reply)


async def test_trailers_do_not_get_into_the_body(target: Target, engines: Engines) -> None:
    engines.script([SSE_HEAD, chunk(GOOD_FRAMES), b"0\r\nx-checksum: 1\r\n\r\n"], PLAIN)
    reply = await ask(target.url, STREAM_ASK)
    assert_good(reply)
    assert b"x-checksum" not in reply.body, f"in the body: {reply.body[-80:]!r}"


async def test_chunk_extensions_do_not_get_into_the_body(target: Target, engines: Engines) -> None:
    engines.script([SSE_HEAD, b"%x;a=b;c\r\n%b\r\n" % (len(GOOD_FRAMES), GOOD_FRAMES), END])
    assert_good(await ask(target.url, STREAM_ASK))


async def test_an_answer_that_ends_with_the_connection_passes(target: Target, engines: Engines) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n"
    engines.script([head % b"text/event-stream", GOOD_FRAMES, Cut()])
    assert_good(await ask(target.url, STREAM_ASK))
    engines.script([head % b"application/json", PLAIN_BODY, Cut()])
    assert_good(await ask(target.url, PLAIN_ASK), PLAIN_TEXT)


async def test_bytes_after_an_answer_are_never_the_next_answer(target: Target, engines: Engines) -> None:
    planted = b'{"object":"chat.completion","choices":[{"message":{"content":"planted"},"finish_reason":"stop"}]}'
    engines.script([response(200, PLAIN_BODY) + response(200, planted)], PLAIN)
    assert_good(await ask(target.url, PLAIN_ASK), PLAIN_TEXT)
    for _ in range(4):
        assert_good(await ask(target.url, PLAIN_ASK), PLAIN_TEXT)


async def test_a_request_with_two_framings_is_one_request_at_most(target: Target, engines: Engines) -> None:
    hidden = json.dumps(PLAIN_ASK | {"user": "smuggled"}).encode()
    inner = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    inner += b"content-length: %d\r\n\r\n" % len(hidden) + hidden
    body = json.dumps(PLAIN_ASK).encode()
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + inner
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    await raw(target.url, head + b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % len(framed) + framed)
    seen = [request.body for request in engines.asked]
    assert not any(b"smuggled" in one for one in seen), f"the hidden request was served: {len(seen)} in all"
