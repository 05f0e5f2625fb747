"""How plots look: one colour and dash per policy everywhere, labels beside lines, no legend over data.

Colours are Okabe and Ito's, told apart by people who are colour-blind; dashes and markers tell policies apart that
share one. matplotlib is imported when a plot is drawn, and nowhere else.
"""

import importlib
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

from evenload.sim.policies import policy_name

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, GREY, BLACK = "#E69F00", "#56B4E9", "#808080", "#000000"
BROWN = "#7A4A1E"  # not one of theirs: the regret plot has more policies than they have colours
DPI: Final = 100
RC: Final = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.facecolor": "white",
}


class Look(NamedTuple):
    """How a policy is drawn."""

    color: str
    dash: str = "-"
    marker: str = "o"


LOOKS: Final = {
    "predictive": Look(BLUE),
    "oracle": Look(BLACK, "--", "D"),
    "least-connections": Look(VERMILION, "-", "s"),
    "least-awaiting": Look(GREEN, "-", "^"),
    "health-ramp": Look(PURPLE, "-", "v"),
    "peak-ewma-decay": Look(ORANGE, "-", "P"),
    "prequal": Look(SKY, "-", "X"),
    "dynamo": Look(BROWN, "--", "<"),
    "sglang-cache-aware": Look(ORANGE, "--", ">"),
    "llm-d": Look(PURPLE, "--", "p"),
    "vllm-dp": Look(SKY, "--", "h"),
    "p2c-in-flight": Look(VERMILION, "--", "s"),
    "envoy-least-request": Look(VERMILION, ":", "s"),
    "c3": Look(GREEN, ":", "^"),
    "peak-ewma": Look(ORANGE, ":", "P"),
    "peak-ewma-10s": Look(SKY, ":", "X"),
    "peak-ewma-penalty": Look(PURPLE, ":", "v"),
    "round-robin": Look(GREY, "-", "d"),
    "health": Look(GREY, "--", "d"),
    "random": Look(GREY, ":", "d"),
}


def require_plots() -> Any:
    """Return matplotlib.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    return importlib.import_module("matplotlib")


def look(policy: str) -> Look:
    """Return how a policy is drawn; one with constants of its own is dotted."""
    name = policy_name(policy)
    found = LOOKS.get(name, Look(GREY, "-."))
    return found if name == policy else found._replace(dash=":")


def line_style(policy: str, *, subject: str) -> dict[str, Any]:
    """Return keyword arguments of a line."""
    mine = look(policy)
    width = 2.4 if policy == subject else 1.5
    return {"color": mine.color, "linestyle": mine.dash, "linewidth": width, "zorder": 4 if policy == subject else 3}


def panels(count: int, *, width: float = 3.6, height: float = 2.7, columns: int = 3) -> tuple[Any, list[Any]]:
    """Return a figure and `count` axes in rows; sizes in inches."""
    columns = 2 if count in {2, 4} else min(columns, count)
    rows = -(-count // columns)
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(width * columns, height * rows + 0.5), layout="constrained"
    )
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def legend_below(figure: Any, policies: Sequence[str], *, subject: str, markers: bool = False) -> None:
    """Put one legend below all axes."""
    lines = importlib.import_module("matplotlib.lines")
    handles = [
        lines.Line2D(
            [],
            [],
            label=policy,
            marker=look(policy).marker if markers else "",
            **(line_style(policy, subject=subject) | ({"linestyle": ""} if markers else {})),
        )
        for policy in policies
    ]
    width = figure.get_size_inches()[0]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=max(1, min(len(handles), int(width / 1.4))), frameon=False
    )


def label_ends(axes: Any, ends: Sequence[tuple[str, float, float]]) -> None:
    """Write each line's name beside its last point `(policy, x, y)`, moved apart where they would touch.

    Call when the axes have their final limits and scales.
    """
    right = max((x for _, x, _ in ends), default=0.0)
    text = {"fontsize": 8, "va": "center", "annotation_clip": False}
    for policy, x, y in ends:
        if x < right:  # the line ends inside: its name stands there
            axes.annotate(policy, (x, y), (5, 0), textcoords="offset points", color=look(policy).color, **text)
    beside = [end for end in ends if end[1] == right]
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = sorted((float(to_axes.transform((x, y))[1]), policy, x, y) for policy, x, y in beside)
    for height, (_, policy, x, y) in zip(_apart([height for height, *_ in placed]), placed, strict=True):
        color = look(policy).color
        arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(policy, (x, y), (1.02, height), textcoords="axes fraction", color=color, arrowprops=arrow, **text)


def _apart(heights: Sequence[float]) -> list[float]:
    """Move sorted heights, 0 to 1, so far apart that lines of text fit."""
    least = 0.062
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + least) if found else max(0.0, height))
    over = max(0.0, found[-1] - 1.0) if found else 0.0
    return [height - over for height in found]


def seconds_axis(axis: Any) -> None:
    """Write a logarithmic axis of seconds as 0.1, 0.2, 0.5, 1, ... where decades alone would be too few."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))


def png(figure: Any) -> bytes:
    """Return the figure as a small PNG file of 64 colours, the same bytes for the same figure."""
    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    image = importlib.import_module("PIL.Image").open(drawn).convert("RGB")  # matplotlib needs Pillow itself
    image.quantize(64, dither=0).save(small, format="png", optimize=True)
    return small.getvalue()
