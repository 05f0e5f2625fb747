"""The gauges of one page, whichever engine wrote it."""

from dataclasses import dataclass

from evenload.schemas import EngineGauges

SCORED = ("running", "waiting", "kv_usage")


@dataclass(frozen=True, slots=True)
class Page:
    """What a page said; None is unknown, which is not zero.

    Attributes:
        running, waiting: requests; waiting includes what was preempted and waits to go on.
        kv_usage: 0..1, of the fullest cache.
        prefix_hits, prefix_queries: counters of one unit, tokens or blocks as the engine has it.
        preemptions: counter.
        started_s: when the engine's process began, seconds since the epoch.
        deferred: those of `waiting` that no capacity would help, for instance for an adapter or a KV transfer.
        rejections: counter of requests that the engine refused for its queue was full.
        progress: a number that changes with every step of the engine, for comparison only.
        asleep: whether the engine was put to sleep and serves nothing until it is woken.
        dropped: values that cannot be, and series said twice.
        quiet: whether the page has nothing new to say; then nothing on it is missing.
        offers: which of the gauges that scores need this kind of engine has at all.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prefix_hits: int | None = None
    prefix_queries: int | None = None
    preemptions: int | None = None
    started_s: float | None = None
    deferred: int | None = None
    rejections: int | None = None
    progress: float | None = None
    asleep: bool = False
    dropped: int = 0
    quiet: bool = False
    offers: tuple[str, ...] = SCORED

    @property
    def known(self) -> tuple[str, ...]:
        """The gauges that scores need and that the page says."""
        return tuple(name for name in SCORED if getattr(self, name) is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """The gauges that scores need, that the engine should say, and that are unknown."""
        return () if self.quiet else tuple(name for name in self.offers if getattr(self, name) is None)

    def event(self, instance: str) -> EngineGauges:
        """Return what the log is told."""
        return EngineGauges(
            instance=instance,
            running=self.running,
            waiting=self.waiting,
            kv_usage=self.kv_usage,
            prefix_hits=self.prefix_hits,
            prefix_queries=self.prefix_queries,
            preemptions=self.preemptions,
            started_s=self.started_s,
        )
