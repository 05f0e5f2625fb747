"""Requests and scripts that several files of checks use."""

from typing import Any

from evenload.router.fake_wire import SSE_HEAD, Cut, Script, Stall, chunk, content, error, role

from .client import Reply, ask
from .engines import MODEL, STREAM, STREAM_TEXT, Engines
from .target import Target

PLAIN_ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
STREAM_ASK = {**PLAIN_ASK, "stream": True}
BUSY = error(503, "The engine is currently busy and cannot accept new requests.")
TOO_MANY = error(429, "Too many requests in the queue.")
BOOM = error(500, "EngineCore encountered an issue.")
# Content has been sent and has had time to reach the client; what comes next is a fault after content.
BEGUN: list[Any] = [SSE_HEAD, chunk(role()), chunk(content("Hel")), Stall(0.2)]
BROKEN_OFF: Script = [*BEGUN, Cut()]


def assert_good(reply: Reply, text: str = STREAM_TEXT) -> None:
    """The answer is whole, without an error, and says `text`."""
    assert reply.status == 200, f"expected an answer, got {reply}"
    assert not reply.says_broken, f"expected a whole answer without an error, got {reply}"
    assert reply.text == text, f"expected the text {text!r}, got {reply.text!r}"


async def assert_made_good(target: Target, engines: Engines, bad: Script) -> None:
    """One bad attempt and then a good one are one clean stream for the client."""
    engines.script(bad, STREAM)
    assert_good(await ask(target.url, STREAM_ASK))
    assert len(engines.asked) >= 2, "the engines were asked once only: the fault was not met"
