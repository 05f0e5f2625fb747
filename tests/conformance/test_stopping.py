"""Stopping loses no stream"""

import asyncio
import json

import pytest

from evenload.router.fake_wire import DONE, END, SSE_HEAD, Gate, chunk, content, finish, role

from .asks import STREAM_ASK
from .client import Wire
from .engines import Engines
from .target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

OPEN_S = 2.0  # how long the stream stays open after the signal
GONE_S = 20.0


async def test_a_stream_that_is_open_when_it_is_told_to_stop_is_finished_and_then_the_process_ends(
    target: Target, engines: Engines
) -> None:
    if target.start is None:
        pytest.skip("not checked: the proxy was not started here, so it is not stopped here")
    gate = asyncio.Event()
    engines.script(
        [SSE_HEAD, chunk(role()), chunk(content("Hel")), Gate(gate), chunk(content("lo") + finish() + DONE), END]
    )
    async with target.another() as (child, url), Wire(url) as wire:
        await wire.send("/v1/chat/completions", json.dumps(STREAM_ASK).encode())
        await wire.until(b"Hel")
        child.send(target.stop_signal)
        await asyncio.sleep(OPEN_S)
        gate.set()
        await wire.until(b"[DONE]")
        wire.writer.close()
        for _ in range(int(GONE_S / 0.1)):
            if not child.running:
                break
            await asyncio.sleep(0.1)
        assert not child.running, f"still there {GONE_S:g} s after its last stream had ended"
        assert child.returncode in (0, -target.stop_signal), f"ended with {child.returncode}"
