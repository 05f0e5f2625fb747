"""`GET /v1/models`: the names that clients may ask for.

Pools with named models list those. A pool that takes any model asks its instances and lists the union of what they say;
an instance that does not answer changes nothing, and the answer is kept for some seconds.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from evenload.router.dispatcher import Dispatcher
from evenload.router.shape import ANY_MODEL
from evenload.router.upstream import Upstream
from evenload.router.upstream_errors import UpstreamError

KEEP_S = 10.0
ANSWER_S = 2.0
BODY_BYTES_MAX = 4 * 1024 * 1024


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode = msgspec.json.Decoder(_Models).decode


class ModelsPage:
    """The merged list of models.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, dispatcher: Dispatcher, clock: Callable[[], float]) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._asked_at_s: float | None = None
        self._found: dict[str, set[str]] = {}  # by instance, what it said last
        self._lock = asyncio.Lock()

    async def read(self) -> dict[str, Any]:
        """Return the list in OpenAI's form, with what Anthropic's clients look for beside it."""
        names = sorted({*self._dispatcher.models(), *await self._of_any_pools()})
        entries = [
            {"id": name, "object": "model", "created": 0, "owned_by": "evenload", **_anthropic(name)} for name in names
        ]
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        return {"object": "list", "data": entries, "has_more": False, **ends}

    async def _of_any_pools(self) -> set[str]:
        pool = self._dispatcher.service("*")
        if pool is None:
            return set()
        async with self._lock:
            now_s = self._clock()
            if self._asked_at_s is None or now_s - self._asked_at_s > KEEP_S:
                upstreams = [self._dispatcher.upstreams[name] for name in pool.instances]
                answers = await asyncio.gather(*(_ask(upstream) for upstream in upstreams))
                found = zip(pool.instances, answers, strict=True)
                self._found = {name: answer or self._found.get(name, set()) for name, answer in found}
                self._asked_at_s = now_s
        return set().union(*self._found.values())


def _anthropic(name: str) -> dict[str, str]:
    return {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


async def _ask(upstream: Upstream) -> set[str]:
    """Return what one instance says it serves; nothing when it does not answer in time.

    One with names of its own is known by those that clients use.
    """
    if upstream.shape is not None and upstream.shape.names:
        return set(upstream.shape.names) - {ANY_MODEL}
    try:
        async with asyncio.timeout(ANSWER_S):
            response = await upstream.request("GET", b"/v1/models", [(b"accept", b"application/json")], b"")
            try:
                body = await response.read_all(BODY_BYTES_MAX)
            finally:
                response.release()
        return {model.id for model in _decode(body).data} if response.status == 200 else set()
    except (TimeoutError, UpstreamError, msgspec.MsgspecError, ValueError, RecursionError):
        return set()
