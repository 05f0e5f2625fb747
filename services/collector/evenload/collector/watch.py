"""What polls of one instance mean: which events the log gets, and when to ask again. Pure: time is an argument.

- Gauges go to the log when they changed, and at least once a second.
- A refused connection or `/health` answering 503 makes the instance not ready at once. Silence never does: a busy
  engine is slow to answer, and the routers see its silence themselves.
- An instance that is not ready is ready again once `/health` says so (or is unknown to it while `/metrics` answers).
- The log decides: when the scorer's snapshots disagree with what was said last, it is said again. So readiness survives
  an outage of Kafka, in which events grow too old to count.
"""

from evenload.collector.vllm import Page
from evenload.schemas import EngineGauges, Event, Membership

GAUGES_EVERY_MS = 1_000
HEALTH_EVERY_MS = 1_000
RESTATE_AFTER_MS = 3_000
BACKOFF_MS_MAX = 2_000

REFUSED = "refused"
UNHEALTHY = "health_503"


class Watch:
    """One instance.

    Attributes:
        instance: its id.
        ready: what was said last; None before anything was.
        failures: failed polls in a row.
        failure: cause of the last failed poll, empty after one that succeeded.
        page: the newest page, None before any.
    """

    def __init__(self, instance: str, poll_ms: int) -> None:
        self.instance = instance
        self.ready: bool | None = None
        self.failures = 0
        self.failure = ""
        self.page: Page | None = None
        self._poll_ms = poll_ms
        self._cause = ""
        self._said: EngineGauges | None = None
        self._said_ms = 0.0
        self._stated_ms = 0.0
        self._health_ms: float | None = None

    def __repr__(self) -> str:
        return f"<Watch {self.instance} ready={self.ready} cause={self._cause!r} failures={self.failures}>"

    def joined(self) -> Event:
        """Return the event that opens the watch."""
        return Membership(instance=self.instance, change="joined")

    def wants_health(self, now_ms: float) -> bool:
        """Tell whether to ask `/health` with this poll: always until ready, then once a second."""
        return not self.ready or self._health_ms is None or now_ms - self._health_ms >= HEALTH_EVERY_MS

    def pause_ms(self) -> float:
        """Time until the next poll: doubles with each failure in a row."""
        doubled: float = self._poll_ms * 2 ** min(self.failures, 10)
        return self._poll_ms if not self.failures else min(doubled, max(self._poll_ms, BACKOFF_MS_MAX))

    def on_page(self, page: Page, now_ms: float) -> list[Event]:
        """Take a metrics page."""
        self.failures, self.failure, self.page = 0, "", page
        gauges = page.event(self.instance)
        if gauges == self._said and now_ms - self._said_ms < GAUGES_EVERY_MS:
            return []
        self._said, self._said_ms = gauges, now_ms
        return [gauges]

    def on_health(self, status: int, now_ms: float) -> list[Event]:
        """Take the status of `/health`."""
        self._health_ms = now_ms
        if status == 503:
            return self._state(False, UNHEALTHY, now_ms)
        if 200 <= status < 300 or status == 404:
            return self._state(True, "", now_ms)
        return []

    def on_failure(self, cause: str, now_ms: float) -> list[Event]:
        """Take a poll without a usable answer: `refused`, `timeout`, or whatever it was."""
        self.failures += 1
        self.failure = cause
        return self._state(False, REFUSED, now_ms) if cause == REFUSED else []

    def on_snapshot(self, ready: bool, now_ms: float) -> list[Event]:
        """Take what the scorer believes; returns what to say again if it is wrong for some seconds."""
        if self.ready is None or ready == self.ready or now_ms - self._stated_ms < RESTATE_AFTER_MS:
            return []
        return [self._statement(now_ms)]

    def _state(self, ready: bool, cause: str, now_ms: float) -> list[Event]:
        # A process that was gone and is up but not yet healthy stays `refused`: its restart must not be forgotten.
        if ready == self.ready and (ready or self._cause in (cause, REFUSED)):
            return []
        self.ready, self._cause = ready, cause
        return [self._statement(now_ms)]

    def _statement(self, now_ms: float) -> Event:
        self._stated_ms = now_ms
        return Membership(instance=self.instance, change="ready" if self.ready else "not_ready", cause=self._cause)
