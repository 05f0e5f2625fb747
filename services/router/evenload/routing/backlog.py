"""How much prefill work lies before a request at an instance, and what TTFT that lets expect.

    work = work_of(own prompt tokens awaiting their first token + others' + the request's own uncached ones)

Requests in flight mostly decode and make nobody wait; what predicts TTFT is who is before the first token. The other
replicas' part is as old as the snapshot: what the engine has computed since is taken off at its learned rate. What came
since is unknown and, on average, the same for all candidates.
"""

from typing import NamedTuple

from evenload.routing.policy import InstanceView, Request
from evenload.scoring.prediction import ATTENTION_TOKENS, predicted_ms, work_of

REPORT_AGE_MS = 150.0  # the age of a replica's report when the snapshot that has it is taken: tick, linger, Kafka


class Expected(NamedTuple):
    """What was expected of an attempt when it was sent; `ttft_ms` is None where nothing had been learned."""

    work: int
    ttft_ms: float | None
    cached_tokens: int = 0


UNEXPECTED = Expected(0, None)


def work_before(view: InstanceView, request: Request, now_ms: int, token_ms: float) -> float:
    """Return the work until the request's first token, tokens; `token_ms` is the cost of one at the instance."""
    uncached = request.prompt_tokens - view.cached_tokens
    tokens = float(view.awaiting_tokens + (uncached if uncached > 0 else 0))
    if view.others_awaiting_tokens:
        others = float(view.others_awaiting_tokens)
        if token_ms > 0.0 and view.snapshot_ms is not None:
            others -= (now_ms - view.snapshot_ms + REPORT_AGE_MS) / token_ms
        if others > 0.0:
            tokens += others
    return tokens * (1.0 + tokens / ATTENTION_TOKENS)  # `work_of`, without the call


def expect(view: InstanceView, request: Request, now_ms: int) -> Expected:
    """Return work and predicted TTFT of a request that is about to be sent to the instance."""
    work = work_before(view, request, now_ms, view.state.token_ms)
    return Expected(int(work), predicted_ms(view.state, work), view.cached_tokens)


def explained_ms(view: InstanceView, expected_ms: float | None) -> float | None:
    """Return what a waiting request could have been expected to take, by what is known now.

    A long prompt of another replica, unknown when the request was sent, explains a wait: the instance is not slow.
    Without this, one 50k-token prompt convicts a healthy engine through the short requests behind it.
    """
    if expected_ms is None or not view.others_awaiting_tokens:
        return expected_ms
    now_ms = predicted_ms(view.state, work_of(float(view.awaiting_tokens + view.others_awaiting_tokens)))
    return expected_ms if now_ms is None or now_ms < expected_ms else now_ms
