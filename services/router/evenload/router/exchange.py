"""One request from its body to its answer: the loop of attempts, and what the client is told when all have failed."""

import asyncio
import math
import random
from collections.abc import Callable

import msgspec

from .attempt import Attempt, Failure, Request
from .client import Client
from .errors import API_ERROR, INVALID_REQUEST, error_body, error_headers
from .limits import Limits
from .ports import Ask, Dispatcher, Lease, NoInstance
from .watch import Receive, Watch, Watches


class Plan(msgspec.Struct, frozen=True):
    """What a request is, once its body has been read.

    Attributes:
        ask: for the dispatcher.
        request: for upstreams.
        prompt_bytes: from which tokens are estimated and learned.
        limits: of the pool that serves the model.
    """

    ask: Ask
    request: Request
    prompt_bytes: int
    limits: Limits


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
        watch = self._watches.open(receive)
        try:
            failure = await self._attempts(plan, client, watch)
            if isinstance(failure, NoInstance):
                await _answer_nobody(client, failure)
            elif failure is not None:
                await _answer_failure(client, failure)
        except asyncio.CancelledError:
            if not watch.take_left():
                raise
        finally:
            watch.close()

    async def _attempts(self, plan: Plan, client: Client, watch: Watch) -> Failure | NoInstance | None:
        failures: list[Failure] = []
        limits = plan.limits
        for number in range(limits.attempts_max):
            tried = tuple(failure.instance for failure in failures)
            try:
                lease = self._dispatcher.choose(plan.ask, tried, number)
            except NoInstance as nobody:
                return failures[-1] if failures else nobody
            wait_s = self._wait_s(lease.instance, failures, limits)
            if wait_s > limits.back_off_s_max:
                _give_back(lease)
                return failures[-1]
            attempt = Attempt(lease, plan.request, client, watch, limits=limits, clock=self._clock)
            failure = await attempt.run(wait_s)
            if attempt.prompt_tokens is not None:
                self._dispatcher.learn_tokens(plan.ask.model, plan.prompt_bytes, attempt.prompt_tokens)
            if failure is None or not failure.verdict.retriable:
                return failure
            failures.append(failure)
        return failures[-1]

    def _wait_s(self, instance: str, failures: list[Failure], limits: Limits) -> float:
        """Return the back-off: none for an instance not yet tried; else what it asked for, or doubling with jitter."""
        asked_ms = [failure.verdict.retry_after_ms for failure in failures if failure.instance == instance]
        if not asked_ms:
            return 0.0
        if asked_ms[-1] is not None:
            return asked_ms[-1] / 1000.0
        wait_s: float = limits.back_off_s * 2.0 ** (len(asked_ms) - 1) * self._rng.uniform(0.5, 1.5)
        return min(wait_s, limits.back_off_s_max)


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


async def _answer_nobody(client: Client, nobody: NoInstance) -> None:
    error_type = INVALID_REQUEST if nobody.status < 500 and nobody.status != 429 else API_ERROR
    body = error_body(nobody.message, error_type=error_type, code=nobody.code)
    await client.answer(nobody.status, error_headers(body, nobody.retry_after_s), body)


async def _answer_failure(client: Client, failure: Failure) -> None:
    """Pass on the last upstream's own error; where it has none, say what happened."""
    if failure.status >= 400:
        return await client.answer(failure.status, failure.headers, failure.body, failure.instance)
    verdict = failure.verdict
    status = _STATUS_OF_KIND.get(verdict.kind, 502)
    body = error_body(
        f"No instance could answer ({verdict.kind}, {verdict.cause}). Nothing was generated for you; try again later.",
        error_type=API_ERROR,
        code=f"upstream_{verdict.cause or verdict.kind}",
    )
    retry_after_s = None if verdict.retry_after_ms is None else math.ceil(verdict.retry_after_ms / 1000.0)
    return await client.answer(status, error_headers(body, retry_after_s), body, failure.instance)


_STATUS_OF_KIND = {"timeout": 504, "saturated": 503, "quota": 429}
