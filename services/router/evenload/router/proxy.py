"""The data plane's front: a raw ASGI callable that takes the hot endpoints and leaves the rest to the app behind it.

A framework's routing costs as much again as the whole request (platform notes: 75 to 105 us), so the endpoints that
carry traffic (`endpoints.py`) are matched here by one dictionary look-up. The body goes upstream byte for byte and the
answer comes back byte for byte; of the body only `model`, `stream`, `n`, the token limits and how the
prompt begins are looked at.

Reading order: here, `endpoints.py`, `request_head.py` (what is looked at of a body), `exchange.py` (attempts),
`attempt.py` (one attempt), `stream.py`, `watch.py` (interruptions), `upstream.py`.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from evenload.api.errors import ApiError
from evenload.api.keys import ClientKeys, Refused

from . import deadline, trace_context
from .admission import Gate, Shed
from .beginnings import SHORTEST_BYTES, prompts_in
from .client import Client, Send
from .endpoints import ENDPOINTS, Endpoint, form_of
from .exchange import Exchange, Plan, told_of
from .headers import request_headers, request_id_of
from .held_bodies import HeldBodies, HeldBody
from .limits import Limits
from .ports import Ask, Dispatcher
from .request import Request
from .request_head import Unservable, not_json, read
from .watch import Receive
from .wire import wire_of

# Bytes of a request that are not prompt: keys of a minimal chat request with model, one message, stream and a limit.
# What is left is taken for prompt; the learned bytes-per-token ratio absorbs escapes and further keys. Inline images
# are counted as if they were text.
FRAMING_BYTES = 96

TOKENS_MAX = 2**31 - 1  # of a client's limit that is kept; a larger one fits no record

App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_ids = random.Random()  # seeded by the system: ids have to differ, not to be secret; a system call each costs 1 us
_INTERNAL = ApiError(
    status=500,
    code="internal_error",
    message="The router itself failed; this is a fault in it. Ask again, and report the request id if it stays.",
)


class _ClientLeft(Exception):
    """The client left before its request was complete."""


class Proxy:
    """ASGI callable.

    Args:
        app: gets everything that is not a POST to one of `ENDPOINTS`.
        dispatcher: chooses and books instances.
        limits: of the body; the rest is for models whose pool has none of its own.
        gate: bounds the requests of the whole router; None does not.
        keys: of the clients that are served; None serves everybody.
        names_instance: answers say which instance gave them, in `x-evenload-instance`.
        bodies: bounds the bytes of bodies that are held; None for a bound that is never reached.
        clock: monotonic, seconds; for durations that are reported, and rates.
        rng: for back-off jitter.

    Attributes:
        limits, gate, keys, bodies, names_instance: as given; may be replaced at any time.
        leaving: answers ask the client to close the connection, so that none is in use when the listener goes.
    """

    def __init__(
        self,
        app: App,
        dispatcher: Dispatcher,
        limits: Limits | None = None,
        *,
        gate: Gate | None = None,
        keys: ClientKeys | None = None,
        bodies: HeldBodies | None = None,
        names_instance: bool = True,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._app = app
        self._dispatcher = dispatcher
        self.limits = limits or Limits()
        self.gate = gate
        self._clock = clock
        self.keys = keys
        self.bodies = bodies or HeldBodies(sys.maxsize)
        self.names_instance = names_instance
        self.leaving = False
        self._exchange = Exchange(dispatcher, clock, rng or random.Random())

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = ENDPOINTS.get(scope["path"])
            if endpoint is not None:
                return await self._serve(endpoint, scope, receive, send)
        if self.keys is not None and scope["type"] == "http" and scope["path"].startswith("/v1/"):
            headers = dict(scope["headers"])
            try:
                self.keys.identify(headers)
            except Refused as refusal:
                form = form_of(scope["path"], anthropic_client=b"anthropic-version" in headers)
                client = Client(send, own_request_id(headers), closing=self.leaving, form=form)
                return await client.refuse(refusal.error)
        return await self._app(scope, receive, send)

    async def _serve(  # noqa: PLR0912 - one function, for a further coroutine would cost each request
        self, endpoint: Endpoint, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        headers = scope["headers"]
        by_name = dict(headers)  # the last of each name
        request_id = own_request_id(by_name)
        client = Client(
            send,
            request_id,
            closing=self.leaving,
            form=endpoint.form,
            wire=wire_of(scope),
            names_instance=self.names_instance,
        )
        held: HeldBody | None = None
        try:
            if self.keys is not None:
                self.keys.admit(by_name, self._clock())
            until_s = _deadline(by_name[deadline.HEADER], scope) if deadline.HEADER in by_name else None
            traced = trace_context.TRACEPARENT in by_name or trace_context.TRACESTATE in by_name
            body = None if client.wire is None else client.wire.whole_body()
            if body is None:
                held = self.bodies.hold()
                body = await _read_in_time(by_name, receive, self.limits.body_bytes_max, held, until_s)
            elif len(body) > self.limits.body_bytes_max:
                raise _too_large(self.limits.body_bytes_max)
            plan = self._plan(endpoint, _target(scope), headers, request_id, body, until_s=until_s, traced=traced)
            if plan.service is not None and plan.service.renames:
                client.model_name = endpoint.rewriter(plan.ask.model)
            return await self._exchange.serve(plan, client, receive)
        except (Unservable, Refused) as refusal:
            return await client.refuse(refusal.error)
        except Shed as shed:
            return await client.refuse(told_of(shed))
        except _ClientLeft:
            return None
        except RecursionError:
            # Nested just within reach when it was read here, and no more deeper in the stack, where `Shape` reads it.
            if client.started:
                raise
            return await client.refuse(not_json().error)
        except Exception as error:
            error.add_note(f"request {request_id.decode('ascii')}")
            if not client.started:
                await client.refuse(_INTERNAL)
            raise  # the server logs it
        finally:
            if held is not None:
                held.release()

    def _plan(
        self,
        endpoint: Endpoint,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        request_id: bytes,
        body: bytes,
        *,
        until_s: float | None,
        traced: bool,
    ) -> Plan:
        sent = request_headers(headers, request_id)
        head = read(endpoint, sent, body)
        service = self._dispatcher.service(head.model)
        prompt_bytes = max(1, len(body) - FRAMING_BYTES) if endpoint.reads else 0
        max_tokens = head.max_tokens
        if max_tokens is None:
            max_tokens = head.max_output_tokens if head.max_completion_tokens is None else head.max_completion_tokens
        beginnings = None
        if endpoint.begins and service is not None and len(body) >= SHORTEST_BYTES:
            beginnings = service.beginnings
        ask = Ask(
            request_id=request_id.decode("ascii"),
            model=head.model,
            prompt_tokens=service.estimate_tokens(prompt_bytes) if prompt_bytes and service is not None else 1,
            stream=bool(head.stream),
            endpoint=endpoint.name,
            max_tokens=None if max_tokens is None else int(max(0, min(max_tokens, TOKENS_MAX))),
            beginning=0 if beginnings is None else beginnings.of(head.model, head),
        )
        if traced:
            sent = trace_context.checked(sent)
        choices = max(1, int(head.n or 1))
        if ask.stream and head.prompt:
            choices *= prompts_in(head.prompt)
        listed = service is not None and head.model in service.models
        request = Request(
            target, sent, body, ask.stream, choices, endpoint.observer, endpoint.gives_object, head.model, listed
        )
        if service is None:
            return Plan(ask, request, prompt_bytes, self.limits, until_s, _present(None, self.gate))
        limits = service.limits or self.limits
        return Plan(ask, request, prompt_bytes, limits, until_s, _present(service.gate, self.gate), service)


def own_request_id(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the client's request id if it has a plain one, else a new one."""
    return request_id_of(headers) or b"req-%024x" % _ids.getrandbits(96)


def _present(first: Gate | None, second: Gate | None) -> tuple[Gate, ...]:
    if first is None:
        return () if second is None else (second,)
    return (first,) if second is None else (first, second)


def _deadline(value: bytes, scope: Mapping[str, Any]) -> float:
    """Return when the client's deadline passes, on the event loop's clock; it runs from the arrival of the head."""
    try:
        arrived_s: float | None = scope.get(deadline.ARRIVED_S)
        return (asyncio.get_running_loop().time() if arrived_s is None else arrived_s) + deadline.seconds_of(value)
    except ValueError as error:
        raise Unservable(400, "invalid_value", str(error), deadline.HEADER.decode()) from None


def _target(scope: MutableMapping[str, Any]) -> bytes:
    """Return path and query as they came."""
    path: bytes = scope["path"].encode("ascii")
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path


async def _read_in_time(
    headers: dict[bytes, bytes], receive: Receive, limit: int, held: HeldBody, until_s: float | None
) -> bytes:
    """Return the body.

    Raises:
        Unservable: as for `_read_body`, or the client's own deadline has passed.
        Shed, _ClientLeft: as for `_read_body`.
    """
    if until_s is None:
        return await _read_body(headers, receive, limit, held)
    try:
        async with asyncio.timeout_at(until_s):
            return await _read_body(headers, receive, limit, held)
    except TimeoutError:
        raise Unservable(504, deadline.CODE, deadline.MESSAGE) from None


async def _read_body(headers: dict[bytes, bytes], receive: Receive, limit: int, held: HeldBody) -> bytes:
    """Return the body.

    Raises:
        Unservable: it is longer than `limit`; raised before more than that has been kept.
        Shed: there is no room for it; raised before more has been read.
        _ClientLeft: the client went away.
    """
    length = headers.get(b"content-length")
    if length is not None:
        if len(length) > 15 or int(length) > limit:
            raise _too_large(limit)
        held.fit(int(length))
    message = await receive()
    if message["type"] != "http.request":
        raise _ClientLeft
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(first) > limit:
            raise _too_large(limit)
        held.reach(len(first))
        return first
    return await _read_rest(first, receive, limit, held)


async def _read_rest(first: bytes, receive: Receive, limit: int, held: HeldBody) -> bytes:
    chunks = [first]
    size = len(first)
    while True:
        if size > limit:
            raise _too_large(limit)
        held.reach(size)
        message = await receive()
        if message["type"] != "http.request":
            raise _ClientLeft
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_large(limit)
    held.reach(size)
    return b"".join(chunks)


def _too_large(limit: int) -> Unservable:
    return Unservable(413, "request_too_large", f"The request body is over the limit of {limit} bytes; send less.")
