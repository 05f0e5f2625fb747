"""The collector's door for telemetry of others."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from evenload.settings.base import ListenAddress, Section


class IngestSettings(Section):
    """Telemetry of other gateways by HTTP."""

    listen: ListenAddress | None = Field(
        None, max_length=262, description="`host:port` of `POST /v1/telemetry`. Null takes no reports."
    )
    keys_file: Path | None = Field(
        None, description="File of the reporters' keys, as `router.keys_file`; required with `listen`."
    )
    traces: Literal["off", "otlp"] = Field(
        "off",
        description="`otlp` takes OpenTelemetry's GenAI spans at `POST /v1/traces` too; it needs the extra `otel`.",
    )
    max_body_bytes: int = Field(
        256 * 1024, ge=1024, le=512 * 1024, description="Largest body, after decompression; a larger one gets 413."
    )
    max_events: int = Field(1000, ge=1, le=10_000, description="Most events of a report; more get 413.")
    max_concurrent: int = Field(64, ge=1, le=10_000, description="Reports under way at once; more get 503.")
    timeout_s: float = Field(
        5, gt=0, le=60, description="Longest wait for Kafka's acknowledgement; beyond it the answer is 503."
    )
