"""What polls of one instance mean: which events the log gets, and when to ask again. Pure: time is an argument.

- Gauges go to the log when they changed, and at least once a second.
- Not ready makes, at once: a refused connection, `/health` answering 503, an engine put to sleep. And, where the page
  counts the engine's steps: requests that run without a step for `stall_ms`, unless routers see answers meanwhile.
- Silence never does: a busy engine is slow to answer, and the routers see its silence themselves.
- An instance that is not ready is ready again once `/health` says so (or does not know) and `/v1/models` lists a model
  (or does not say). Engines say 200 or 503 there; whatever else comes, a redirect or a fault of the page, shows that
  somebody listens again. It takes no 503 back, and a gateway's 502 or 504 is not the engine's word.
- An engine that drains cannot be told by `/health`: a real vLLM answers 200 and refuses every request. The routers see
  the refusals, and the snapshots say so: then the log is told that it drains, until it is gone or for `DRAIN_MS_MAX`.
- The log decides: when the scorer's snapshots disagree with what was said last, it is said again. So readiness survives
  an outage of Kafka, in which events grow too old to count.
"""

from evenload.collector.engines.page import Page
from evenload.schemas import EngineGauges, Event, InstanceState, Membership

GAUGES_EVERY_MS = 1_000
HEALTH_EVERY_MS = 1_000
RESTATE_AFTER_MS = 3_000
BACKOFF_MS_MAX = 2_000
STALL_MS = 30_000
DRAIN_MS_MAX = 60_000  # then it gets requests again, and one refusal is enough to say it anew
DRAIN_REFUSALS = 2  # failures within 10 s, the last of them a refusal that says so; one odd failure convicts nobody
NO_HEALTH = frozenset({401, 403, 404, 405})  # it is there, and `/health` is not, or not for us: the rest decides
NOBODY = frozenset({502, 504})  # a gateway that found nobody behind it
MODELS_TRIES_MAX = 3  # a list that does not come keeps nobody out

REFUSED = "refused"
UNHEALTHY = "health_503"
LOADING = "model_not_loaded"
ASLEEP = "asleep"
STALLED = "stalled"
DRAINING = "draining"


class Watch:
    """One instance.

    Attributes:
        instance: its id.
        ready: what was said last; None before anything was.
        failures: failed polls in a row.
        failure: cause of the last failed poll, empty after one that succeeded.
        page: the newest page, None before any.
    """

    def __init__(self, instance: str, poll_ms: int, stall_ms: float = STALL_MS) -> None:
        self.instance = instance
        self.ready: bool | None = None
        self.failures = 0
        self.failure = ""
        self.page: Page | None = None
        self._poll_ms = poll_ms
        self._stall_ms = stall_ms
        self._cause = ""
        self._said: EngineGauges | None = None
        self._said_ms = 0.0
        self._stated_ms = 0.0
        self._health_ms: float | None = None
        self._healthy: bool | None = None  # None: not known since it was refused, or ever
        self._refused = False
        self._loaded: bool | None = None  # None: to be asked
        self._models_tries = 0
        self._ever: frozenset[str] = frozenset()
        self._progress: float | None = None
        self._progress_ms: float | None = None  # since when requests run without a step
        self._answers: int | None = None
        self._drain_ms: float | None = None

    def __repr__(self) -> str:
        return f"<Watch {self.instance} ready={self.ready} cause={self._cause!r} failures={self.failures}>"

    def renewed(self) -> "Watch":
        """Return a watch of the same instance that knows nothing: what was seen is old when polling begins again."""
        return Watch(self.instance, self._poll_ms, self._stall_ms)

    @property
    def vanished(self) -> tuple[str, ...]:
        """Gauges that the instance used to say and no longer does, while it still has a page."""
        if self.page is None or self.page.quiet:
            return ()
        return tuple(sorted(self._ever.difference(self.page.known)))

    def joined(self) -> Event:
        """Return the event that opens the watch."""
        return Membership(instance=self.instance, change="joined")

    def wants_health(self, now_ms: float) -> bool:
        """Tell whether to ask `/health` with this poll: always until ready, then once a second."""
        return not self.ready or self._health_ms is None or now_ms - self._health_ms >= HEALTH_EVERY_MS

    def wants_models(self) -> bool:
        """Tell whether to ask `/v1/models` after `/health`: until it is known of this process of the engine."""
        return self._healthy is True and self._loaded is not True

    def pause_ms(self) -> float:
        """Time until the next poll: doubles with each failure in a row."""
        doubled: float = self._poll_ms * 2 ** min(self.failures, 10)
        return self._poll_ms if not self.failures else min(doubled, max(self._poll_ms, BACKOFF_MS_MAX))

    def on_page(self, page: Page, now_ms: float) -> list[Event]:
        """Take a metrics page."""
        self.failures, self.failure = 0, ""
        if page.quiet:
            return []
        before, self.page = self.page, page
        self._ever = self._ever.union(page.known)
        if before and page.started_s is not None and page.started_s != before.started_s is not None:
            self._health_ms, self._loaded, self._models_tries = None, None, 0  # another process: ask it all anew
        self._follow(page, now_ms)
        gauges = page.event(self.instance)
        news: list[Event] = self._settle(now_ms) if self._blocked() or self._cause in (ASLEEP, STALLED) else []
        if gauges == self._said and now_ms - self._said_ms < GAUGES_EVERY_MS:
            return news
        self._said, self._said_ms = gauges, now_ms
        return [gauges, *news]

    def on_health(self, status: int, now_ms: float) -> list[Event]:
        """Take the status of `/health`."""
        self._health_ms = now_ms
        if status == 503:
            self._healthy = False
        elif 200 <= status < 300 or status in NO_HEALTH or (self._healthy is None and status not in NOBODY):
            self._healthy, self._refused = True, False
        return self._settle(now_ms)

    def on_models(self, loaded: bool | None, now_ms: float) -> list[Event]:
        """Take what `/v1/models` says: whether a model is loaded, None if that cannot be told."""
        self._loaded = loaded is not False
        return self._settle(now_ms)

    def on_no_models(self, now_ms: float) -> list[Event]:
        """Take that `/v1/models` did not answer."""
        self._models_tries += 1
        return self.on_models(None, now_ms) if self._models_tries >= MODELS_TRIES_MAX else []

    def on_failure(self, cause: str, now_ms: float) -> list[Event]:
        """Take a poll without a usable answer: `refused`, `timeout`, or whatever it was."""
        self.failures += 1
        self.failure = cause
        self._progress_ms = None  # nobody looked, so nobody can say that it made no step
        if cause != REFUSED:
            return []
        self._refused, self._healthy, self._loaded, self._models_tries = True, None, None, 0
        return self._settle(now_ms)

    def on_snapshot(self, state: InstanceState, now_ms: float) -> list[Event]:
        """Take what the scorer believes; returns what to say again if it is wrong for some seconds."""
        answers = state.first_tokens + state.successes
        if self._answers is not None and answers != self._answers:
            self._progress_ms = None  # it answers, whatever its counters say
        self._answers = answers
        if now_ms - self._stated_ms < RESTATE_AFTER_MS:
            return []
        if self.ready is not None and state.ready != self.ready:
            return [self._statement(now_ms)]
        return self._drain(state, now_ms)

    def _drain(self, state: InstanceState, now_ms: float) -> list[Event]:
        # Successes beside it prove nothing: streams that run already are finished while new requests are refused.
        refuses = state.ready and state.cause == DRAINING and state.err_sum >= DRAIN_REFUSALS
        if refuses and not state.draining:
            self._drain_ms = self._stated_ms = now_ms
            return [Membership(instance=self.instance, change="draining", cause=DRAINING)]
        if state.draining and self._drain_ms is not None and now_ms - self._drain_ms >= DRAIN_MS_MAX:
            self._drain_ms = None
            return [self.joined()]
        return []

    def _follow(self, page: Page, now_ms: float) -> None:
        """Note since when requests run without a step."""
        stands = page.running and page.progress is not None and page.progress == self._progress
        self._progress = page.progress
        if not stands:
            self._progress_ms = None
        elif self._progress_ms is None:
            self._progress_ms = now_ms

    def _blocked(self) -> bool:
        return (self.page is not None and self.page.asleep) or self._progress_ms is not None

    def _reason(self, now_ms: float) -> str:
        """Why it cannot serve, as far as is known; empty if nothing says so."""
        if self._refused:
            return REFUSED
        if self._healthy is False:
            return UNHEALTHY
        if self._loaded is False:
            return LOADING
        if self.page is not None and self.page.asleep:
            return ASLEEP
        stands = self._progress_ms is not None and now_ms - self._progress_ms >= self._stall_ms
        return STALLED if stands else ""

    def _settle(self, now_ms: float) -> list[Event]:
        """Say whether it is ready, if that is known and news."""
        reason = self._reason(now_ms)
        if not reason and not (self._healthy and self._loaded):
            return []
        ready = not reason
        # A process that was gone and is up but not yet healthy stays `refused`: its restart must not be forgotten.
        if ready == self.ready and (ready or self._cause in (reason, REFUSED)):
            return []
        self.ready, self._cause = ready, reason
        return [self._statement(now_ms)]

    def _statement(self, now_ms: float) -> Event:
        self._stated_ms = now_ms
        return Membership(instance=self.instance, change="ready" if self.ready else "not_ready", cause=self._cause)
