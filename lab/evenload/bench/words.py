"""Verdicts and costs in words and as plain data, the same in the terminal, in JSON, on the page and in the report."""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite, isnan
from typing import Any

from evenload.bench.bars import Verdict
from evenload.bench.costs import Estimate
from evenload.bench.tables import short


def verdict_rows(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """Return a row of text per bar."""
    return [
        {
            "": one.family,
            "bar": one.asks,
            "limit": limit_text(one),
            "found": found_text(one),
            "outcome": one.outcome,
            "note": note_text(one),
        }
        for one in verdicts
    ]


def limit_text(verdict: Verdict) -> str:
    """Return the limit, `≤ 0.5 s`; empty where a figure is only shown."""
    if isnan(verdict.limit):
        return ""
    return f"{'≤' if verdict.at_most else '≥'} {_amount(verdict.limit, verdict.unit)}"


def found_text(verdict: Verdict) -> str:
    """Return the figure with its interval, `0.45 [0.40, 0.50] s`."""
    found = verdict.measured
    if isnan(found.value):
        return ""
    value = _amount(found.value, verdict.unit)
    if found.low == found.high:
        return value
    return f"{value} [{_number(found.low, verdict.unit)}, {_number(found.high, verdict.unit)}]"


def note_text(verdict: Verdict) -> str:
    """Return the note, with what is uncertain and how many seeds there were, if not ten."""
    parts = [verdict.note] if verdict.note else []
    if verdict.outcome in {"pass", "miss"}:
        if not verdict.sure:
            parts.append("the interval crosses the bar")
        if verdict.measured.seeds < 10:
            parts.append(f"{verdict.measured.seeds} seed{'s' if verdict.measured.seeds > 1 else ''} only")
    return "; ".join(parts)


def tally(verdicts: Sequence[Verdict]) -> str:
    """Return how many passed, missed and did not run, in a sentence."""
    count = {name: sum(one.outcome == name for one in verdicts) for name in ("pass", "miss", "not run")}
    return f"{count['pass']} bars passed, {count['miss']} missed, {count['not run']} not run."


def verdicts_json(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the bars as plain data; figures that are not finite are text."""
    return [plain(asdict(one)) for one in verdicts]


def cost_rows(estimates: Sequence[Estimate]) -> list[dict[str, str]]:
    """Return a row of text per scenario."""
    return [
        {
            "scenario": one.scenario,
            "simulated": f"{one.simulated_s:.0f} s",
            "policies": str(one.policies),
            "runs": str(one.runs),
            "kept": str(one.kept),
            "CPU": f"{one.cpu_s:.0f} s",
        }
        for one in estimates
    ]


def costs_json(estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    """Return the costs as plain data."""
    return [asdict(one) for one in estimates]


def plain(value: Any) -> Any:
    """Return plain data in which figures that are not finite are text: JSON knows no infinity and no NaN."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _amount(value: float, unit: str) -> str:
    number = _number(value, unit)
    return f"{number} {unit}".strip()


def _number(value: float, unit: str) -> str:
    return short(100.0 * value if unit == "%" else value)
