"""What the log says of attempts that fail: a line per instance and cause, every ten seconds at most.

Requests are made good elsewhere, so without it nobody would learn that an instance refuses the router's key, or why one
loses its score. Load (429 and the like) is no failure, and what a client did wrong is none of the instance's.
"""

from evenload.bus.client_logs import limited_logger
from evenload.schemas import Outcome

_SAID = frozenset({"connect_error", "http_error", "quota", "stream_error", "timeout", "upstream_cut"})

log = limited_logger(__name__)


def say(pool: str, outcome: Outcome) -> None:
    """Write a line if the attempt failed."""
    if outcome.kind in _SAID:
        log.warning(
            "%s in pool %s failed: %s, %s, status %d after %.0f ms; request %s, attempt %d",
            outcome.instance,
            pool,
            outcome.kind,
            outcome.cause or "no cause",
            outcome.status,
            outcome.duration_ms,
            outcome.request_id,
            outcome.attempt,
            extra={"cause": f"{outcome.instance} {outcome.kind} {outcome.cause}"},
        )
