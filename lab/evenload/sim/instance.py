"""An engine or provider with its faults: what a router and a poller meet at an address."""

from dataclasses import dataclass
from random import Random
from typing import Literal

from evenload.schemas import EngineGauges
from evenload.sim.engine import Engine
from evenload.sim.jobs import HASH_TOKENS
from evenload.sim.prefix_cache import PrefixCache
from evenload.sim.provider import Provider
from evenload.sim.scenario import InstanceSpec
from evenload.sim.sequence import Emission, SimRequest

Answer = Literal["accepted", "refused", "saturated", "failed"]
FAIL_MS = 5.0  # how fast a black hole fails
ANSWER_MS = 1.0  # how fast a refusal or a 429 comes back


@dataclass(slots=True)
class Totals:
    """What an instance did over all its lives."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    rejections: int = 0
    crashes: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    generation_tokens: int = 0
    failed: int = 0


class Instance:
    """One address.

    Attributes:
        up: whether anybody listens.
        lives: how often it has been started; a poller sees another process start time each time.
        fail_share: of requests that fail at once.
    """

    def __init__(self, index: int, spec: InstanceSpec, rng: Random) -> None:
        self.index = index
        self.name = f"i{index:02d}"
        self.spec = spec
        self.up = spec.joins_at_ms <= 0
        self.lives = 1
        self.totals = Totals()
        self._rng = rng
        self._slowdown = (1.0, 1.0)
        self.fail_share = 0.0
        self.core = self._started()

    def __repr__(self) -> str:
        return f"Instance({self.name}, up={self.up}, {self.core!r})"

    @property
    def faulty(self) -> bool:
        """Whether a fault is on."""
        return not self.up or self.fail_share > 0.0 or self._slowdown[0] != 1.0

    def _started(self) -> Engine | Provider:
        spec = self.spec
        if spec.machine is None:
            return Provider(spec.provider, self._rng, by_token=False)
        cache = PrefixCache(spec.machine.kv_tokens, HASH_TOKENS) if spec.prefix_cache else None
        return Engine(spec.machine, queue_max=spec.queue_max, queued_tokens_max=spec.queued_tokens_max, prefixes=cache)

    # -- what routers do

    def submit(self, request: SimRequest, now_ms: float) -> Answer:
        """Send a request; anything but `accepted` comes back at once (`FAIL_MS`, `ANSWER_MS`)."""
        if not self.up:
            return "refused"
        if self.fail_share and self._rng.random() < self.fail_share:
            self.totals.failed += 1
            return "failed"
        if not self.core.submit(request, now_ms):
            return "saturated"
        return "accepted"

    def overloaded(self) -> bool:
        """Whether the worker dies of what it holds."""
        limit, machine = self.spec.crash_overload, self.spec.machine
        if limit is None or machine is None or not isinstance(self.core, Engine):
            return False
        return self.core.demand_tokens > limit * machine.kv_tokens

    def abort(self, request_id: str, now_ms: float) -> None:
        """The client has gone."""
        if self.up:
            self.core.abort(request_id, now_ms)

    def advance(self, now_ms: float) -> list[Emission]:
        """Compute up to now."""
        return self.core.advance(now_ms) if self.up else []

    def next_event_ms(self) -> float | None:
        """When something happens next by itself."""
        return self.core.next_event_ms() if self.up else None

    # -- faults

    def slow(self, factor: float, share: float, now_ms: float) -> None:
        """Change how slow it is; 1 is healthy."""
        self._slowdown = (factor, share)
        self._set_slowdown(now_ms)

    def _set_slowdown(self, now_ms: float) -> None:
        factor, share = self._slowdown
        if isinstance(self.core, Provider):
            self.core.set_slowdown(factor, now_ms, share)
        else:
            self.core.set_slowdown(factor, now_ms)

    def fail(self, share: float) -> None:
        """Change the share of requests that fail at once."""
        self.fail_share = share

    def crash(self) -> None:
        """Die; what it held is lost."""
        self._keep_counts()
        self.totals.crashes += 1
        self.up = False

    def start(self, now_ms: float) -> None:
        """Come (back), cold."""
        if self.totals.crashes:
            self.lives += 1
        self.core = self._started()
        self.up = True
        self._set_slowdown(now_ms)

    def _keep_counts(self) -> None:
        if isinstance(self.core, Engine):
            gauges = self.core.gauges()
            for name in ("preemptions", "recomputed_tokens", "rejections", "prefix_queries", "prefix_hits"):
                setattr(self.totals, name, getattr(self.totals, name) + getattr(gauges, name))
            self.totals.generation_tokens += gauges.generation_tokens

    def final_totals(self) -> Totals:
        """Return what it did in all; call once, at the end."""
        if self.up:
            self._keep_counts()
        return self.totals

    # -- what a poller sees

    def gauges(self, now_ms: float) -> EngineGauges | None:
        """Return its metrics page, or None for a provider, which has none."""
        if not isinstance(self.core, Engine):
            return None
        self.core.advance_to(now_ms)
        seen = self.core.gauges()
        return EngineGauges(
            instance=self.name,
            running=seen.running,
            waiting=seen.waiting,
            kv_usage=seen.kv_usage,
            prefix_hits=seen.prefix_hits,
            prefix_queries=seen.prefix_queries,
            preemptions=seen.preemptions,
            started_s=float(self.lives),
        )
