"""An external provider as a black box: log-normal TTFT, steady tokens, a request rate limit, no gauges.

It has the engine's calls, so that whoever drives an engine can drive a provider. Its capacity has no end: only the rate
limit says no. `per_token_ms` is constant, real providers vary.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import exp, log
from random import Random

from evenload.sim.sequence import Emission, EmissionKind, SimRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderModel:
    """What the black box looks like from outside.

    Attributes:
        ttft_ms: Median time to the first token.
        sigma: Spread of the log-normal TTFT.
        per_token_ms: Time between tokens.
        rate_limit_rps: Requests per second before 429, with a burst of one second; None is no limit.
    """

    ttft_ms: float = 200.0
    sigma: float = 0.35
    per_token_ms: float = 15.0
    rate_limit_rps: float | None = None

    def __post_init__(self) -> None:
        """Refuse times that make no sense.

        Raises:
            ValueError: A time or the rate limit is not positive, or the spread is negative.
        """
        if self.ttft_ms <= 0 or self.per_token_ms <= 0 or self.sigma < 0:
            raise ValueError("provider: ttft_ms and per_token_ms must be positive, sigma not negative")
        if self.rate_limit_rps is not None and self.rate_limit_rps <= 0:
            raise ValueError("provider: rate_limit_rps must be positive")

    def healthy_ttft_ms(self, noise: float) -> float:
        """TTFT without any fault for a standard normal `noise`."""
        return exp(log(self.ttft_ms) + self.sigma * noise)


class Provider:
    """The black box in operation. Times are milliseconds of the caller's clock.

    Args:
        model: What it looks like.
        rng: For latencies of requests that do not bring their own noise.
        by_token: Whether each token is a step; a caller that streams nothing saves them.
    """

    def __init__(self, model: ProviderModel, rng: Random, *, by_token: bool = True) -> None:
        self.model = model
        self._rng = rng
        self._by_token = by_token
        self._slowdown = 1.0
        self._slow_share = 1.0
        self._events: list[tuple[float, int, str, int]] = []  # (time, order, request, tokens after it)
        self._order = 0
        self._tokens: dict[str, tuple[int, int]] = {}  # id -> (emitted, wanted)
        self._allowance = model.rate_limit_rps or 0.0
        self._refilled_ms = 0.0

    def submit(self, request: SimRequest, now_ms: float) -> bool:
        """Accept a request; False when the rate limit is reached."""
        if not self._admit(now_ms):
            return False
        noise = self._rng.gauss(0.0, 1.0) if request.noise is None else request.noise
        draw = self._rng.random() if request.draw is None and self._slow_share < 1.0 else request.draw or 0.0
        ttft_ms = self.ttft_of(noise, draw)
        self._tokens[request.id] = (0, request.output_tokens)
        self._push(now_ms + ttft_ms, request.id, 1)
        return True

    def abort(self, request_id: str, now_ms: float) -> bool:
        """Forget a request; its pending events are dropped when they come up."""
        del now_ms
        return self._tokens.pop(request_id, None) is not None

    def ttft_of(self, noise: float, draw: float) -> float:
        """TTFT as things are for a standard normal `noise` and a uniform `draw`."""
        return self.model.healthy_ttft_ms(noise) * (self._slowdown if draw < self._slow_share else 1.0)

    def set_slowdown(self, factor: float, now_ms: float, share: float = 1.0) -> None:
        """Multiply the TTFT of a share of the requests that arrive from now on.

        Raises:
            ValueError: The factor is not positive.
        """
        del now_ms
        if not factor > 0:
            raise ValueError(f"slowdown factor must be positive, got {factor}")
        self._slowdown, self._slow_share = factor, share

    def advance(self, now_ms: float) -> list[Emission]:
        """Emit everything due by `now_ms`."""
        emissions: list[Emission] = []
        while self._events and self._events[0][0] <= now_ms:
            at_ms, _, request_id, tokens = heappop(self._events)
            if request_id not in self._tokens:
                continue
            wanted = self._tokens[request_id][1]
            if tokens == 1:
                emissions.append(Emission(at_ms, EmissionKind.FIRST_TOKEN, request_id))
            if tokens == wanted:
                del self._tokens[request_id]
                emissions.append(Emission(at_ms, EmissionKind.FINISHED, request_id))
                continue
            self._tokens[request_id] = (tokens, wanted)
            following = tokens + 1 if self._by_token else wanted
            self._push(at_ms + self.model.per_token_ms * (following - tokens), request_id, following)
        return emissions

    def next_step_ms(self) -> float | None:
        """When the next token of any request is due."""
        return self._events[0][0] if self._events else None

    next_event_ms = next_step_ms

    def tokens_of(self, request_id: str) -> int:
        """Tokens emitted so far for a request it holds."""
        return self._tokens[request_id][0]

    def holds(self, request_id: str) -> bool:
        """Whether the request is in flight."""
        return request_id in self._tokens

    def _push(self, at_ms: float, request_id: str, tokens: int) -> None:
        self._order += 1
        heappush(self._events, (at_ms, self._order, request_id, tokens))

    def _admit(self, now_ms: float) -> bool:
        limit = self.model.rate_limit_rps
        if limit is None:
            return True
        self._allowance = min(max(1.0, limit), self._allowance + limit * (now_ms - self._refilled_ms) / 1000)
        self._refilled_ms = now_ms
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True
