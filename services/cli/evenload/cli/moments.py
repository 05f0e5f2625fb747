"""Moments on the command line: an ISO time, or how long ago."""

import re
from datetime import UTC, datetime

import typer

MOMENT = "2026-11-29T18:30:00Z, or how long ago (90s, 15m, 2h, 1d)"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def moment_ms(text: str, now_ms: int) -> int:
    """Return milliseconds since the epoch.

    Raises:
        typer.BadParameter: it is neither form.
    """
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago:
        return now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1000
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time; expected {MOMENT}") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
