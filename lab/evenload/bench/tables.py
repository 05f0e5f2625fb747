"""From cells to rows: medians over seeds, paired ratios to least-connections, regret."""

from collections.abc import Sequence
from math import isfinite, isnan
from typing import Any, Final

from evenload.bench.grid import Cell
from evenload.bench.plans import BASE
from evenload.sim.comparison import median, paired_ratio, regret
from evenload.sim.policies import ORACLE

# The figure that a family is judged by; less is better except where it starts with a plus.
HEADLINE: Final = {
    "S2": "+goodput_rps",
    "S4": "ttft_p999_ms",
    "S5": "ttft_focus_p99_ms",
    "S7": "fault_ttft_p99_ms",
    "S8": "fault_unserved_share",
    "S13": "+goodput_rps",
}


def p99_figure(family: str) -> str:
    """Return the p99 TTFT that a family is about: of the short prompts in S5, of all elsewhere."""
    return "ttft_focus_p99_ms" if family == "S5" else "ttft_p99_ms"


COLUMNS: Final = {
    "": ("ttft_p50_ms", "ttft_p99_ms", "ttft_p999_ms", "tpot_p99_ms", "goodput_rps", "unserved_share", "imbalance"),
    "S2": ("goodput_rps", "attainment", "effective_tps", "ttft_p99_ms", "tpot_p99_ms"),
    "S5": ("ttft_focus_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "goodput_rps"),
    "S6": ("ttft_p99_ms", "ttft_p50_ms", "preemptions", "recomputed_tokens", "rejections", "crashes", "unserved_share"),
    "S7": (
        "fault_ttft_p99_ms",
        "ttft_p50_ms",
        "t95_s",
        "harmed_share",
        "fault_share",
        "fault_probe_share",
        "back90_s",
        "overshoot",
    ),
    "S8": (
        "fault_unserved_share",
        "fault_ttft_p99_ms",
        "fault_share",
        "fault_probe_share",
        "t95_s",
        "back90_s",
        "overshoot",
    ),
    "S9": ("ttft_p99_ms", "ttft_p999_ms", "lost_share", "unserved_share", "imbalance"),
    "S12": ("ttft_p99_ms", "ttft_p50_ms", "prefix_hit_share", "recomputed_tokens", "preemptions", "unserved_share"),
    "Headline": ("ttft_p99_ms", "ttft_p50_ms", "ttft_p999_ms", "fault_share", "harmed_share", "unserved_share"),
    "S13": ("goodput_rps", "unserved_share", "ttft_p50_ms", "ttft_p99_ms", "attempts_per_request"),
}


def by_scenario(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Group cells by scenario, in order."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.case.scenario.name, []).append(cell)
    return groups


def scenario_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return one row per policy for the cells of one scenario, best first."""
    family = cells[0].case.scenario.family
    headline = HEADLINE.get(family, "ttft_p99_ms")
    more_is_better, name = headline.startswith("+"), headline.lstrip("+")
    by_policy: dict[str, list[Cell]] = {}
    for cell in cells:
        key = cell.case.policy + (" (bare)" if cell.case.arm == "bare" else "")
        by_policy.setdefault(key, []).append(cell)
    middles = {policy: median([_of(cell, name) for cell in found]) for policy, found in by_policy.items()}
    rows = [
        _row(policy, found, by_policy.get(BASE, []), name, middles=middles, columns=COLUMNS.get(family, COLUMNS[""]))
        for policy, found in by_policy.items()
    ]
    rows.sort(key=lambda row: (middles[row["policy"]] * (-1 if more_is_better else 1), row["policy"]))
    return rows


def _row(
    policy: str,
    cells: Sequence[Cell],
    base: Sequence[Cell],
    headline: str,
    *,
    middles: dict[str, float],
    columns: Sequence[str],
) -> dict[str, Any]:
    ratio = paired_ratio(
        {cell.case.seed: _of(cell, headline) for cell in cells}, {cell.case.seed: _of(cell, headline) for cell in base}
    )
    row: dict[str, Any] = {"policy": policy}
    row |= {column: median([_of(cell, column) for cell in cells]) for column in columns}
    row |= {"ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high, "seeds": len(cells)}
    if BASE in middles and ORACLE in middles:
        row["regret"] = regret(middles[policy], middles[BASE], middles[ORACLE])
    return row


def _of(cell: Cell, name: str) -> float:
    return cell.figures.get(name, float("nan"))


def printable(row: dict[str, Any]) -> dict[str, str]:
    """Return a row for the terminal: the ratio with its interval in one column, short numbers."""
    result: dict[str, str] = {"policy": row["policy"]}
    for name, value in row.items():
        if name in {"policy", "ratio", "ratio_low", "ratio_high"}:
            continue
        if name == "seeds":
            low, high = row["ratio_low"], row["ratio_high"]
            result["x least-conn."] = "" if isnan(row["ratio"]) else f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]"
            result["seeds"] = str(value)
            continue
        result[name.removesuffix("_ms").removesuffix("_share")] = short(value, share=name.endswith("_share"))
    return result


def lines(rows: Sequence[dict[str, str]], left: Sequence[str] = ()) -> list[str]:
    """Return rows of one shape as aligned text, as wide as it is: tables of figures must not be folded.

    Args:
        rows: the keys of the first are the head.
        left: columns that are aligned at the left, besides the first.
    """
    if not rows:
        return []
    table = [list(rows[0]), *(list(row.values()) for row in rows)]
    words = [column == 0 or name in left for column, name in enumerate(table[0])]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            text.ljust(width) if words[column] else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    ]


def short(value: float, *, share: bool = False) -> str:
    """Return a number in a few characters; shares as per cent."""
    if isnan(value):
        return ""
    if not isfinite(value):
        return "inf"
    if share:
        return f"{100 * value:.2f}%"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")
