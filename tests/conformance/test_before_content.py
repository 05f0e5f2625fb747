"""An engine that fails before it has sent content costs the client nothing"""

import pytest

from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Cut,
    Reset,
    chunk,
    error,
    error_frame,
    response,
    role,
    sse,
)

from .asks import BOOM, BUSY, PLAIN_ASK, STREAM_ASK, TOO_MANY, assert_good, assert_made_good
from .client import ask
from .engines import PLAIN, PLAIN_BODY, PLAIN_TEXT, STREAM, Engines
from .target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BUSY_EVENT = error_frame(503, "The engine is currently busy and cannot accept new requests.")
DEAD_EVENT = error_frame(500, "EngineCore encountered an issue.")
REQUESTS = 8
REFUSED = 40  # many, for a peer that asks the same engine again is lucky with most


async def test_refused_connections_are_made_good(target: Target, engines: Engines) -> None:
    engines.script(STREAM)
    await engines.each[0].refuse()
    try:
        for _ in range(REFUSED):
            assert_good(await ask(target.url, STREAM_ASK))
    finally:
        await engines.each[0].listen()


async def test_a_reset_before_the_first_byte_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, [Reset()])


async def test_a_close_before_the_first_byte_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, [Cut()])


async def test_a_status_500_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, [BOOM])


async def test_a_status_503_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, [BUSY])


async def test_a_status_429_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, [TOO_MANY])


async def test_an_error_as_first_event_of_a_200_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, sse(BUSY_EVENT, DONE))


async def test_an_error_after_the_role_event_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, sse(role(), DEAD_EVENT, DONE))


async def test_a_stream_that_is_cut_before_content_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, [SSE_HEAD, chunk(role()), Cut()])


async def test_a_stream_that_ends_before_content_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, [SSE_HEAD, chunk(role()), END])


async def test_an_answer_that_is_not_http_is_made_good(target: Target, engines: Engines) -> None:
    await assert_made_good(target, engines, [b"SSH-2.0-OpenSSH_9.9\r\n\r\n", Cut()])


async def test_a_json_answer_that_is_cut_is_made_good(target: Target, engines: Engines) -> None:
    engines.script([response(200, PLAIN_BODY)[:-40], Cut()], PLAIN)
    assert_good(await ask(target.url, PLAIN_ASK), PLAIN_TEXT)


async def test_a_kept_connection_that_closes_under_the_request_is_made_good(target: Target, engines: Engines) -> None:
    engines.script(PLAIN)
    for _ in range(4):  # so that connections are kept
        await ask(target.url, PLAIN_ASK)
    engines.script_on_reuse(Cut())
    for _ in range(REQUESTS):
        assert_good(await ask(target.url, PLAIN_ASK), PLAIN_TEXT)


async def test_a_clients_error_is_passed_on_and_not_asked_again(target: Target, engines: Engines) -> None:
    bad = error(400, "max_tokens is too large: 99999.", code="invalid_value")
    engines.script([bad])
    reply = await ask(target.url, STREAM_ASK)
    assert reply.status == 400, f"expected the engine's 400, got {reply}"
    assert "max_tokens is too large" in str(reply.error), f"the engine's words are lost: {reply}"
    assert len(engines.asked) == 1, f"asked {len(engines.asked)} times"


async def test_a_clients_error_inside_a_stream_is_not_asked_again(target: Target, engines: Engines) -> None:
    engines.script(sse(error_frame(400, "max_tokens is too large: 99999."), DONE))
    reply = await ask(target.url, STREAM_ASK)
    assert reply.says_broken, f"the error is lost: {reply}"
    assert len(engines.asked) == 1, f"asked {len(engines.asked)} times"
