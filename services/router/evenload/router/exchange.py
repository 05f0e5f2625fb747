"""One request from its body to its answer: the loop of attempts, and what the client is told when all have failed."""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable

import msgspec

from evenload.api.errors import ApiError

from . import leaving
from .admission import Gate, Shed
from .attempt import OVER_TIME, Attempt
from .classify import Verdict
from .client import Client
from .deadline import CODE as OVER_CODE
from .deadline import MESSAGE as OVER_MESSAGE
from .deadline import RETRY_REST_S_MIN
from .limits import Limits
from .ports import Ask, Dispatcher, Lease, NoInstance, Service
from .quota import LONG_QUOTA_MS
from .request import Failure, Request
from .watch import Receive, Watch, Watches

_LOAD = ("saturated", "quota")


class Plan(msgspec.Struct, frozen=True):
    """What a request is, once its body has been read.

    Attributes:
        ask: for the dispatcher.
        request: for upstreams.
        prompt_bytes: from which tokens are estimated and learned; 0 where they say nothing.
        limits: of the pool that serves the model.
        until_s: the client's own deadline on the event loop's clock, None if it set none.
        gates: to pass, in this order. The pool's comes before the router's: a place in the router must not be held by
            a request that waits for a full pool.
        service: what serves the model, None if nobody does.
    """

    ask: Ask
    request: Request
    prompt_bytes: int
    limits: Limits
    until_s: float | None = None
    gates: tuple[Gate, ...] = ()
    service: Service | None = None


OVER = ApiError(status=504, code=OVER_CODE, message=OVER_MESSAGE)


class Exchange:
    """Serves one request.

    Args:
        dispatcher: chooses and books.
        clock: monotonic, seconds.
        rng: for jitter.
    """

    __slots__ = ("_clock", "_dispatcher", "_rng", "_watches")

    def __init__(self, dispatcher: Dispatcher, clock: Callable[[], float], rng: random.Random) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._rng = rng
        self._watches = Watches()

    async def serve(self, plan: Plan, client: Client, receive: Receive) -> None:
        """Answer the client, or notice that it has gone."""
        watch = self._watches.open(receive, client.wire)
        if plan.until_s is not None:
            watch.until(plan.until_s)
        passed = 0
        try:
            for gate in plan.gates:
                if not gate.try_enter():
                    await gate.enter()
                passed += 1
            failure = await self._attempts(plan, client, watch)
            if isinstance(failure, NoInstance):
                await _answer_nobody(client, failure)
            elif failure is not None:
                await self._answer_failure(plan, client, failure)
        except Shed as shed:
            await client.refuse(told_of(shed))
        except asyncio.CancelledError:
            if watch.take_expired() is not None:  # while nobody was being asked
                if not client.started:
                    await client.refuse(OVER)
            elif not watch.take_left():
                await _tell_that_it_ends(client)
                raise
        finally:
            for gate in plan.gates[:passed]:
                gate.leave()
            watch.close()

    async def _attempts(self, plan: Plan, client: Client, watch: Watch) -> Failure | NoInstance | None:
        failures: list[Failure] = []
        limits = plan.limits
        for number in range(limits.attempts_max):
            if failures and _is_too_late(plan, RETRY_REST_S_MIN):
                return _telling(failures)
            tried = tuple([failure.instance for failure in failures]) if failures else ()
            try:
                lease = self._dispatcher.choose(plan.ask, tried, number)
            except NoInstance as nobody:
                return _telling(failures) if failures else nobody
            wait_s = self._wait_s(lease.instance, failures, limits)
            if wait_s > limits.back_off_s_max or (
                failures and _is_too_late(plan, wait_s + (lease.expected_ms or 0.0) / 1000.0)
            ):
                _give_back(lease)
                return _telling(failures)
            attempt = Attempt(lease, plan.request, client, watch, limits=limits, clock=self._clock)
            failure = await attempt.run(wait_s)
            if attempt.prompt_tokens is not None and plan.prompt_bytes and plan.service is not None:
                plan.service.learn_tokens(plan.prompt_bytes, attempt.prompt_tokens)
            if failure is None or not failure.verdict.retriable:
                return failure
            failures.append(failure)
            if number + 1 < limits.attempts_max and not self._dispatcher.may_retry(plan.ask.model):
                break
        return _telling(failures)

    def _wait_s(self, instance: str, failures: list[Failure], limits: Limits) -> float:
        """Return the back-off: none for an instance not yet tried; else what it asked for, or doubling; with jitter."""
        asked_ms = [failure.verdict.retry_after_ms for failure in failures if failure.instance == instance]
        if not asked_ms:
            return 0.0
        if asked_ms[-1] is not None:
            asked_s = asked_ms[-1] / 1000.0
            return max(asked_s, min(asked_s * self._rng.uniform(1.0, 1.25), limits.back_off_s_max))
        wait_s: float = limits.back_off_s * 2.0 ** (len(asked_ms) - 1) * self._rng.uniform(0.5, 1.5)
        return min(wait_s, limits.back_off_s_max)

    async def _answer_failure(self, plan: Plan, client: Client, failure: Failure) -> None:
        """Pass on the upstream's own error; where it has none, or speaks of its load, say what to do."""
        verdict = failure.verdict
        if verdict.kind in _LOAD:
            # An engine knows its own queue only, and a provider's words may name the account.
            wait_s = self._dispatcher.retry_after_s(plan.ask.model)
            await client.refuse(_come_back(verdict, failure.status, wait_s))
        elif failure.status >= 400 and failure.body and verdict.said:
            await client.answer(failure.status, failure.headers, failure.body, failure.instance)
        elif verdict is OVER_TIME:
            await client.refuse(OVER)
        else:
            await client.refuse(_own_error(verdict, failure.status))


def _telling(failures: list[Failure]) -> Failure:
    """Return the failure that the client is told of: load, of the instance that has room first, else the last one.

    Whoever else failed, one that was only busy will answer when the client comes back.
    """
    loads = {failure.instance: failure for failure in failures if failure.verdict.kind in _LOAD}  # the last of each
    return min(reversed(loads.values()), key=_asked_ms) if loads else failures[-1]


def _asked_ms(failure: Failure) -> float:
    asked_ms, cause = failure.verdict.retry_after_ms, failure.verdict.cause
    if asked_ms is None:
        return LONG_QUOTA_MS if cause == "provider_quota" else 0.0
    return asked_ms


def _is_too_late(plan: Plan, needed_s: float) -> bool:
    """Tell whether what takes so long would not be over before the client's deadline."""
    return plan.until_s is not None and asyncio.get_running_loop().time() + needed_s > plan.until_s


def _give_back(lease: Lease) -> None:
    """Release a booking of which no use was made; `rejected` says nothing about the instance."""
    lease.finish(
        "rejected",
        status=0,
        cause="not_sent",
        retry_after_ms=None,
        ttft_ms=None,
        duration_ms=0.0,
        output_tokens=0,
    )


async def _tell_that_it_ends(client: Client) -> None:
    """Tell a client that has got nothing yet that the router is being stopped; it is not waited for."""
    if not client.started:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(leaving.TELL_S):
                await client.refuse(leaving.LEFT)


async def _answer_nobody(client: Client, nobody: NoInstance) -> None:
    error = ApiError(status=nobody.status, code=nobody.code, message=nobody.message, retry_after_s=nobody.retry_after_s)
    await client.refuse(error)


_SHED_FOR = {
    "queue_full": "has no room, not even to wait",
    "queue_deadline": "had no room in time",
    "held_bytes": "has no memory left for the body of this request",
}


def told_of(shed: Shed) -> ApiError:
    """Return what a client is told that was not let in."""
    what = _SHED_FOR[shed.cause]
    message = f"The service is overloaded: it {what}. Nothing was generated; ask again in {shed.retry_after_s} s."
    return ApiError(status=429, code="overloaded", message=message, retry_after_s=shed.retry_after_s)


def _own_error(verdict: Verdict, status: int) -> ApiError:
    """Say what happened where the upstream, whose status was `status`, left no error to pass on."""
    if verdict.kind == "rejected" and verdict.cause != "over_limit":
        # Its status stays: a client takes a 5xx for a reason to send the same again.
        message = (
            f"The instance refused the request with status {status} and no text that can be passed on. "
            "It would be refused again as it is; look at model, parameters and size."
        )
        return ApiError(status=status, code="upstream_rejected", message=message)
    if verdict.cause == "answer":
        status, message = 504, "The instance did not answer in time. Ask for a stream, or for fewer tokens."
    elif verdict.cause == "over_limit":
        status = 413
        message = "The request is larger than what the provider takes from this service within a minute; send less."
    elif verdict.cause == "unauthorized":
        status, message = 502, "An instance does not accept the router's own key. Tell whoever runs the router."
    elif verdict.cause == "model_not_found":
        status = 502
        message = "An instance does not know the model by the name that the router has for it. "
        message += "Tell whoever runs the router."
    else:
        status = 504 if verdict.kind == "timeout" else 502
        message = f"No instance could answer ({verdict.kind}, {verdict.cause}). Nothing was generated; ask again later."
    return ApiError(status=status, code=f"upstream_{verdict.cause or verdict.kind}", message=message)


def _come_back(verdict: Verdict, status: int, wait_s: int | None) -> ApiError:
    """Say that there was no room, and when there may be."""
    if wait_s is None:
        wait_s = 1 if verdict.retry_after_ms is None else max(1, math.ceil(verdict.retry_after_ms / 1000.0))
    if verdict.kind == "quota":
        code, what = "provider_quota", "The provider's quota for this service is used up"
    else:
        code, what = "overloaded", "The instances that serve this model are busy"
    message = f"{what}. Nothing was generated; ask again in {wait_s} s."
    status = 429 if verdict.kind == "quota" or status == 429 else 503
    return ApiError(status=status, code=code, message=message, retry_after_s=wait_s)
