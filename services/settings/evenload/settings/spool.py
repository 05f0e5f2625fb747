"""Settings of the disk spool that routers and collectors have."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from evenload.settings.base import Section


class SpoolSettings(Section):
    """Telemetry on disk while Kafka is away."""

    dir: Path | None = Field(
        None,
        description="Folder in which each process has one of its own, by `name` and topic: it must survive "
        "restarts, and so must the name. Null keeps telemetry in memory only.",
    )
    max_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024 * 1024,
        le=1024**4,
        description="Most bytes on disk per process; beyond it memory fills, then events are lost, counted.",
    )
    fsync: Literal["never", "interval", "always"] = Field(
        "interval",
        description="When writes are forced to the disk: never, every second, or with each. What was written survives "
        "the process in any case; this is about the machine.",
    )
    after_ms: int = Field(
        1000, ge=100, le=60_000, description="Time that Kafka has to take a batch before it goes to disk."
    )
    drain_events_per_s: int = Field(
        10_000,
        ge=100,
        le=1_000_000,
        description="Most events per second that one process sends from disk; must be well above what it observes.",
    )
