"""F01: a client that is gone before its request has been looked at."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from evenload.router.fake_wire import Stall
from evenload.router.fakes import FakeDispatcher, ScriptedUpstream
from evenload.router.native import HttpProtocol
from evenload.router.proxy import Proxy
from tests.router.stage import FAST, inner_app

BODY = b'{"model":"m"}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class _Transport(asyncio.Transport):
    """One that loses what is written, as that of a peer that has gone does."""

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False


async def test_nothing_is_generated_for_a_client_that_has_left_in_the_turn_in_which_it_asked() -> None:
    async with ScriptedUpstream([Stall()]) as engine:
        dispatcher = FakeDispatcher({"a": engine.url})
        config = uvicorn.Config(Proxy(inner_app, dispatcher, FAST), log_config=None)
        config.load()
        state = ServerState()
        connection = HttpProtocol(config, state, {})
        connection.connection_made(_Transport())
        connection.data_received(REQUEST)  # from within a task, so that its own begins in the next turn
        (task,) = state.tasks
        connection.connection_lost(None)
        async with asyncio.timeout(1):
            await task
        assert dispatcher.kinds in ([], ["client_gone"])
        await asyncio.sleep(0.05)
        assert engine.requests == []
        dispatcher.close()
