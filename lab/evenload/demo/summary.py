"""The end of the demo in figures: Evenload next to the baselines, and what became of each promise."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from evenload.demo.checks import REACTION_S, Check, Run, lost, share, without_excused
from evenload.demo.load import Result, ttft_percentile_ms
from evenload.demo.observe import attempts
from evenload.demo.story import SATURATED_ENGINE, SLOW_ENGINE

TITLE: Final = "TTFT in ms while one engine was slow, while one was saturated, and of the whole run"
FAILED: Final = "failed"  # what a percentile is called when the request at that rank failed


@dataclass(frozen=True, slots=True)
class Figures:
    """One lane's figures. Times are TTFT in ms from the scheduled arrival; None when that rank failed.

    Attributes:
        lane: Name.
        requests: Sent.
        lost: Failed, without the streams on a killed router.
        cut: Streams on a killed router.
        slow_p50_ms, slow_p99_ms: Requests that arrived while one engine was slow.
        slow_later_p99_ms: Those of them that arrived 2 s after the fault or later.
        saturated_p50_ms, saturated_p99_ms: Those that arrived while one was saturated.
        all_p50_ms, all_p99_ms: Those of the whole run.
        sick_share: Share of the slow engine, from 2 s after the fault.
        refused: Attempts that went to the saturated engine, and had to be tried elsewhere.
    """

    lane: str
    requests: int
    lost: int
    cut: int
    slow_p50_ms: float | None
    slow_p99_ms: float | None
    slow_later_p99_ms: float | None
    saturated_p50_ms: float | None
    saturated_p99_ms: float | None
    all_p50_ms: float | None
    all_p99_ms: float | None
    sick_share: float | None
    refused: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that is printed at the end.

    Attributes:
        checks: In order of the story.
        figures: Evenload first.
        notes: How it was measured.
        seconds: From the start of the first process to the end of the last load.
    """

    checks: Sequence[Check]
    figures: Sequence[Figures]
    notes: Sequence[str]
    seconds: float

    @property
    def held(self) -> bool:
        """Whether all promises were kept."""
        return all(check.held for check in self.checks)

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "held": self.held,
            "seconds": round(self.seconds, 1),
            "checks": [asdict(check) for check in self.checks],
            "figures": [asdict(row) for row in self.figures],
            "notes": list(self.notes),
        }


def figures(lane: str, run: Run) -> Figures:
    """The figures of one lane.

    Raises:
        KeyError: A fault was not played.
    """
    slow, saturated = run.mark("slow"), run.saturation()
    in_slow = without_excused(run, run.between(slow.start_s, slow.end_s))
    in_saturated = without_excused(run, run.between(saturated.start_s, saturated.end_s))
    counted = without_excused(run, run.results)
    at_saturated = attempts(run.samples, saturated.start_s, saturated.end_s)
    return Figures(
        lane=lane,
        requests=len(run.results),
        lost=len(lost(run)),
        cut=len(run.results) - len(counted),
        slow_p50_ms=_ms(in_slow, 50),
        slow_p99_ms=_ms(in_slow, 99),
        slow_later_p99_ms=_ms([r for r in in_slow if r.at_s >= slow.start_s + REACTION_S], 99),
        saturated_p50_ms=_ms(in_saturated, 50),
        saturated_p99_ms=_ms(in_saturated, 99),
        all_p50_ms=_ms(counted, 50),
        all_p99_ms=_ms(counted, 99),
        sick_share=share(run.between(slow.start_s + REACTION_S, slow.end_s), run.engines[SLOW_ENGINE]),
        refused=round(sum(n for (name, _), n in at_saturated.items() if name == run.engines[SATURATED_ENGINE])),
    )


def _ms(results: Sequence[Result], q: float) -> float | None:
    value = ttft_percentile_ms(results, q)
    return round(value, 1) if math.isfinite(value) else None


HEADERS: Final = (
    "policy",
    "slow: p50 / p99",
    "from 2 s on: p99",
    "saturated: p50 / p99",
    "whole run: p50 / p99",
    "share of slow",
    "refused",
    "lost",
)


def cells(row: Figures) -> tuple[str, ...]:
    """One row of the table, as text."""
    return (
        row.lane,
        _pair(row.slow_p50_ms, row.slow_p99_ms),
        _time(row.slow_later_p99_ms),
        _pair(row.saturated_p50_ms, row.saturated_p99_ms),
        _pair(row.all_p50_ms, row.all_p99_ms),
        "-" if row.sick_share is None else f"{row.sick_share:.1%}",
        f"{row.refused}",
        f"{row.lost} of {row.requests}",
    )


def _pair(p50_ms: float | None, p99_ms: float | None) -> str:
    return f"{_time(p50_ms)} / {_time(p99_ms)}"


def _time(value_ms: float | None) -> str:
    return FAILED if value_ms is None else f"{value_ms:.0f}"


def markdown(summary: Summary) -> str:
    """As markdown, for a README."""
    lines = [
        TITLE + ":",
        "",
        f"| {' | '.join(HEADERS)} |",
        "|---" + "|---:" * (len(HEADERS) - 1) + "|",
        *(f"| {' | '.join(cells(row))} |" for row in summary.figures),
        "",
        "| promise | | figure |",
        "|---|---|---|",
        *(f"| {check.promise} | {verdict(check)} | {check.figure} |" for check in summary.checks),
        "",
        *(f"- {note}" for note in summary.notes),
    ]
    return "\n".join(lines) + "\n"


def verdict(check: Check) -> str:
    """`held` or `NOT held`."""
    return "held" if check.held else "NOT held"
