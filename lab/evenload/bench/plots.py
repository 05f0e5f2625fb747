"""The plots of a report: name to PNG, for whatever the results hold. `plot_style.py` has colours and labels."""

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite, isnan
from typing import Any, Final, NamedTuple

from evenload.bench.evidence import Evidence, Measured
from evenload.bench.grid import Cell
from evenload.bench.knee import ATTAINED
from evenload.bench.plans import BASE, SUBJECT
from evenload.bench.plot_style import (
    GREY,
    RC,
    label_ends,
    legend_below,
    line_style,
    look,
    panels,
    png,
    require_plots,
    seconds_axis,
)
from evenload.bench.tables import p99_figure
from evenload.sim.comparison import median, regret
from evenload.sim.policies import ORACLE
from evenload.sim.scenario import Scenario

LINES_MAX: Final = 6
STALENESS_MS: Final = {"s10-stale-50": 50.0, "s10-stale-250": 250.0, "s10-stale-1000": 1000.0, "s10-stale-5000": 5000.0}
SHARES_MAX: Final = 2.5  # fair shares that a plot of shares shows; single seconds of single seeds go higher
REGRET_RANGE: Final = (-0.25, 2.0)


class Plot(NamedTuple):
    """A picture with what to say below it."""

    name: str
    caption: str
    png: bytes


class _Picture(NamedTuple):
    name: str
    caption: str
    figure: Any


def plots(cells: Sequence[Cell], subject: str = SUBJECT) -> list[Plot]:
    """Return every plot that the results have something for.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    matplotlib = require_plots()
    canvas = _Canvas(Evidence(cells), subject)
    makers = (_headline, _against_load, _knee, _staleness, _replicas, _regrets, _shares, _cdfs)
    with matplotlib.rc_context(RC):
        return [Plot(one.name, one.caption, png(one.figure)) for make in makers for one in make(canvas)]


class _Canvas(NamedTuple):
    evidence: Evidence
    subject: str

    def scenario(self, name: str) -> Scenario:
        policy = self.evidence.policies(name)[0]
        return self.evidence.cells(name, policy)[0].case.scenario

    def of_family(self, family: str) -> list[str]:
        return [name for name in self.evidence.scenarios if self.scenario(name).family == family]

    def measured(self, cell: str, policy: str, figure: str) -> Measured:
        evidence = self.evidence
        return evidence.measure(evidence.median(cell, policy, figure), evidence.seeds((cell, policy)))

    def middle(self, cell: str, policy: str, figure: str) -> float:
        return self.evidence.median(cell, policy, figure)(self.evidence.seeds((cell, policy)))

    def drawn(self, cells: Sequence[str], figure: str, most: int = LINES_MAX) -> list[str]:
        """The subject, the oracle, least-connections, and the baselines that are best on average of ranks."""
        present = {policy for cell in cells for policy in self.evidence.policies(cell)}
        first = [name for name in (self.subject, ORACLE, BASE) if name in present]
        sign = -1.0 if figure in {"goodput_rps", "effective_tps", "attainment"} else 1.0
        ranks: dict[str, list[int]] = {name: [] for name in present if name not in first}
        for cell in cells:
            here = [name for name in self.evidence.policies(cell) if name in ranks]
            here.sort(key=lambda name: (sign * _or_inf(self.middle(cell, name, figure)), name))
            for rank, name in enumerate(here):
                ranks[name].append(rank)
        # One that ran in few of the cells makes no line; it comes last.
        best = sorted(ranks, key=lambda name: (-len(ranks[name]), sum(ranks[name]) / max(1, len(ranks[name])), name))
        return first + best[: most - len(first)]


def _or_inf(value: float) -> float:
    return inf if isnan(value) else value


# -- figures over something


def _lines(
    axes: Any,
    canvas: _Canvas,
    points: Sequence[tuple[float, str]],
    figure: str,
    drawn: Sequence[str],
    *,
    factor: float = 1e-3,
) -> list[tuple[str, float, float]]:
    """Draw a figure over x for each policy, `points` being `(x, cell)`; return the lines' ends."""
    ends: list[tuple[str, float, float]] = []
    for policy in drawn:
        found = [
            (x, canvas.measured(cell, policy, figure)) for x, cell in points if policy in canvas.evidence.policies(cell)
        ]
        found = [(x, one) for x, one in found if isfinite(one.value)]
        if not found:
            continue
        style = line_style(policy, subject=canvas.subject)
        xs, values = [x for x, _ in found], [one.value * factor for _, one in found]
        axes.plot(xs, values, marker=look(policy).marker, markersize=4, **style)
        low = [one.low * factor for _, one in found]
        high = [min(one.high, 1e12) * factor for _, one in found]
        if low != high:
            axes.fill_between(xs, low, high, color=style["color"], alpha=0.12, linewidth=0)
        ends.append((policy, xs[-1], values[-1]))
    return ends


def _loads(canvas: _Canvas) -> list[tuple[float, str]]:
    """Utilisation in per cent and cell; S1 and S2 are the same fleet and load."""
    found: dict[float, str] = {}
    for name in canvas.of_family("S1") + canvas.of_family("S2"):
        match = re.fullmatch(r"s[12]-u(\d+)", name)
        if match:
            found[float(match[1])] = name
    return sorted(found.items())


def _over(
    canvas: _Canvas,
    points: Sequence[tuple[float, str]],
    *,
    xlabel: str,
    xscale: str,
    title: str,
) -> Any:
    """A figure with one panel: p99 TTFT over something."""
    drawn = canvas.drawn([cell for _, cell in points], "ttft_p99_ms")
    figure, (axes,) = panels(1, width=6.4, height=3.6)
    ends = _lines(axes, canvas, points, "ttft_p99_ms", drawn)
    axes.set(title=title, xlabel=xlabel, ylabel="p99 TTFT, s", xscale=xscale)
    axes.set_xticks([x for x, _ in points], [f"{x:g}" for x, _ in points])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    if high > 6.0 * max(low, 1e-9):
        axes.set_yscale("log")
        seconds_axis(axes.yaxis)
    else:
        axes.set_ylim(bottom=0.0)
    label_ends(axes, ends)
    return figure


def _against_load(canvas: _Canvas) -> Iterator[_Picture]:
    points = _loads(canvas)
    if len(points) > 1:
        title = "p99 TTFT against load (8 h100-8b, Azure conversations)"
        yield _Picture(
            "p99-load",
            "p99 TTFT against load. Bands are 95 % intervals of the median over seeds. The oracle of S2 (where both "
            "ran, its result is shown) aims at goodput, not at TTFT.",
            _over(canvas, points, xlabel="load, % of the fleet's saturated throughput", xscale="linear", title=title),
        )


def _knee(canvas: _Canvas) -> Iterator[_Picture]:
    points = [(x, cell) for x, cell in _loads(canvas) if cell.startswith("s2-")]
    if len(points) < 2:
        return
    drawn = canvas.drawn([cell for _, cell in points], "goodput_rps")
    figure, (left, right) = panels(2, width=4.6, height=3.4)
    for axes, name, factor in ((left, "goodput_rps", 1.0), (right, "attainment", 100.0)):
        _lines(axes, canvas, points, name, drawn, factor=factor)
        axes.set_xticks([x for x, _ in points])
        axes.set_xlabel("load, % of saturated throughput")
    legend_below(figure, drawn, subject=canvas.subject)
    slo = canvas.scenario(points[0][1]).slo
    left.set(title="Goodput", ylabel="good requests per second")
    right.set(title="Attainment", ylabel="requests that meet every SLO, %")
    right.axhline(100.0 * ATTAINED, color=GREY, linewidth=0.8, linestyle=":")
    right.annotate("99 %", (points[-1][0], 100.0 * ATTAINED), color=GREY, fontsize=8, ha="right", va="bottom")
    caption = f"The knee: goodput and attainment (TTFT within {slo.ttft_ms / 1e3:g} s, TPOT within {slo.tpot_ms:g} ms)."
    yield _Picture("knee", caption, figure)


def _staleness(canvas: _Canvas) -> Iterator[_Picture]:
    points = [(ms / 1e3, name) for name, ms in STALENESS_MS.items() if name in canvas.evidence.scenarios]
    if len(points) > 1:
        yield _Picture(
            "p99-staleness",
            "p99 TTFT against staleness of telemetry; events are as many times later as gauges from 1 s on (S10).",
            _over(
                canvas,
                points,
                xlabel="interval between gauges, s",
                xscale="log",
                title="p99 TTFT against staleness of telemetry (85 % load)",
            ),
        )


def _replicas(canvas: _Canvas) -> Iterator[_Picture]:
    points = sorted((float(canvas.scenario(name).routers), name) for name in canvas.of_family("S11"))
    if len(points) > 1:
        yield _Picture(
            "p99-replicas",
            "p99 TTFT against the number of router replicas that share the load (S11).",
            _over(
                canvas,
                points,
                xlabel="router replicas",
                xscale="log",
                title="p99 TTFT against router replicas (16 engines, 85 % load)",
            ),
        )


# -- dots by scenario


def _headline(canvas: _Canvas) -> Iterator[_Picture]:
    cells = canvas.of_family("Headline")
    if not cells:
        return
    drawn = canvas.drawn(cells, "ttft_p99_ms")
    figure, (axes,) = panels(1, width=6.8, height=0.5 * len(cells) + 1.2)
    _dots(axes, canvas, cells, drawn, lambda cell, policy: canvas.middle(cell, policy, "ttft_p99_ms") / 1e3)
    axes.set(title="p99 TTFT in the headline scenario and its neighbours", xlabel="p99 TTFT, s", xscale="log")
    seconds_axis(axes.xaxis)
    for row, cell in enumerate(cells):
        pairs = ((cell, BASE, "ttft_p99_ms"), (cell, canvas.subject, "ttft_p99_ms"))
        gain = canvas.evidence.ratio(*pairs)(canvas.evidence.seeds(pairs[0][:2], pairs[1][:2]))
        if isfinite(gain):
            text = f"{gain:.1f} x"
            axes.annotate(text, (1.02, row), xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    legend_below(figure, drawn, subject=canvas.subject, markers=True)
    caption = f"The headline scenario and its neighbours; at the right least-connections over {canvas.subject}."
    yield _Picture("headline", caption, figure)


def _regrets(canvas: _Canvas) -> Iterator[_Picture]:
    found: dict[str, dict[str, float]] = {}
    for cell in canvas.evidence.scenarios:
        values = _regrets_of(canvas, cell)
        if values:
            found[cell] = values
    if not found:
        return
    drawn = [name for name in canvas.drawn(list(found), "ttft_p99_ms", LINES_MAX + 1) if name not in {BASE, ORACLE}]
    figure, (axes,) = panels(1, width=7.2, height=0.22 * len(found) + 1.4)
    low, high = REGRET_RANGE
    axes.set_xlim(low - 0.08, high + 0.08)
    for row, values in enumerate(found.values()):
        others = [min(max(value, low), high) for name, value in values.items() if name not in {*drawn, BASE, ORACLE}]
        axes.plot(others, [row] * len(others), linestyle="", marker=".", color="#c8c8c8", markersize=5, zorder=2)
    _dots(axes, canvas, list(found), drawn, lambda cell, name: min(max(found[cell].get(name, inf), low), high))
    for x, text in ((0.0, "oracle"), (1.0, "least-connections")):
        axes.axvline(x, color="#000000", linewidth=0.9, zorder=1)
        axes.annotate(text, (x, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)
    axes.set_xlabel("regret on p99 TTFT (short prompts in S5); what lies outside is drawn at the edge")
    legend_below(figure, drawn, subject=canvas.subject, markers=True)
    caption = (
        "Regret per scenario: 0 is the oracle, 1 least-connections; grey dots are other policies. "
        "Left out where least-connections is within 10 % of the oracle."
    )
    yield _Picture("regret", caption, figure)


def _regrets_of(canvas: _Canvas, cell: str) -> dict[str, float]:
    scenario = canvas.scenario(cell)
    if scenario.aim != "ttft":
        return {}  # the oracle gave TTFT away for something else
    figure = p99_figure(scenario.family)
    middles = {policy: canvas.middle(cell, policy, figure) for policy in canvas.evidence.policies(cell)}
    if BASE not in middles or ORACLE not in middles:
        return {}
    found = {policy: regret(value, middles[BASE], middles[ORACLE]) for policy, value in middles.items()}
    return {policy: value for policy, value in found.items() if not isnan(value)}


def _dots(
    axes: Any, canvas: _Canvas, cells: Sequence[str], drawn: Sequence[str], value: Callable[[str, str], float]
) -> None:
    """One row per cell, the first at the top, one marker per policy."""
    for policy in reversed(drawn):
        rows = [row for row, cell in enumerate(cells) if policy in canvas.evidence.policies(cell)]
        axes.plot(
            [value(cells[row], policy) for row in rows],
            rows,
            linestyle="",
            marker=look(policy).marker,
            color=look(policy).color,
            markersize=8 if policy == canvas.subject else 6,
            zorder=4 if policy == canvas.subject else 3,
        )
    axes.set_yticks(range(len(cells)), list(cells))
    axes.set_ylim(len(cells) - 0.5, -0.5)


# -- distributions and time


def _shares(canvas: _Canvas) -> Iterator[_Picture]:
    words = {"S7": "a slow instance", "S8": "an instance that fails fast", "Headline": "a sick engine"}
    for family, what in words.items():
        cells = [name for name in canvas.of_family(family) if canvas.scenario(name).faults]
        if not cells:
            continue
        drawn = canvas.drawn(cells, "ttft_p99_ms")
        figure, axes = panels(len(cells))
        for ax, cell in zip(axes, cells, strict=True):
            _share(ax, canvas, cell, drawn)
        legend_below(figure, drawn, subject=canvas.subject)
        caption = f"Share of attempts at {what}, second by second ({family}); the fault is shaded, fair share dotted."
        yield _Picture(f"share-{family.lower()}", caption, figure)


def _share(axes: Any, canvas: _Canvas, cell: str, drawn: Sequence[str]) -> None:
    scenario = canvas.scenario(cell)
    fault = scenario.faults[0]
    fair = top = 100.0 / len(scenario.fleet)
    axes.axvspan(fault.from_ms / 1e3, fault.until_ms / 1e3, color="#f3f3f3", zorder=0)
    axes.axhline(fair, color=GREY, linewidth=0.8, linestyle=":")
    for policy in drawn:
        curves = [
            one.curves["faulty_share"] for one in canvas.evidence.cells(cell, policy) if one.curves["faulty_share"]
        ]
        if curves:
            middle = [100.0 * median(values) for values in zip(*curves, strict=True)]
            axes.plot(range(len(middle)), middle, **line_style(policy, subject=canvas.subject))
            top = max(top, *middle[int(fault.from_ms / 1e3) :])
    axes.set(title=cell, xlabel="time, s", ylabel="share, %", ylim=(0.0, 1.05 * min(top, SHARES_MAX * fair)))
    axes.set_xlim(fault.from_ms / 1e3 - 10.0, scenario.duration_s)


def _cdfs(canvas: _Canvas) -> Iterator[_Picture]:
    families = dict.fromkeys(canvas.scenario(name).family for name in canvas.evidence.scenarios)
    for family in families:
        cells = canvas.of_family(family)
        drawn = canvas.drawn(cells, "ttft_p99_ms")
        figure, axes = panels(len(cells))
        for ax, cell in zip(axes, cells, strict=True):
            _cdf(ax, canvas, cell, drawn)
        legend_below(figure, drawn, subject=canvas.subject)
        caption = f"TTFT, cumulative ({family}): share of requests with a first token within that time, tail stretched."
        yield _Picture(f"ttft-{family.lower()}", caption, figure)


def _cdf(axes: Any, canvas: _Canvas, cell: str, drawn: Sequence[str]) -> None:
    for policy in drawn:
        curves = [one.curves["ttft_ms"] for one in canvas.evidence.cells(cell, policy)]
        if not curves:
            continue
        middle = [median(values) / 1e3 for values in zip(*curves, strict=True)]
        shares = [100.0 * (at + 1) / len(middle) for at in range(len(middle))]
        points = [(x, y) for x, y in zip(middle, shares, strict=True) if isfinite(x) and x > 0 and y < 100.0]
        axes.plot([x for x, _ in points], [y for _, y in points], **line_style(policy, subject=canvas.subject))
    axes.set_xscale("log")
    axes.set_yscale("function", functions=(_stretch, _unstretch))
    axes.set_ylim(0.0, 99.5)
    axes.set_yticks([0, 50, 80, 90, 95, 98, 99], ["0", "50", "80", "90", "95", "98", "99"])
    seconds_axis(axes.xaxis)
    axes.set(title=cell, xlabel="TTFT, s", ylabel="requests, %")


def _stretch(percent: Any) -> Any:
    """Equal lengths for 0 to 90, 90 to 99, ...: the tail is what balancing is about."""
    numpy = importlib.import_module("numpy")
    return -numpy.log10(numpy.maximum(1e-3, 1.0 - numpy.asarray(percent) / 100.0))


def _unstretch(height: Any) -> Any:
    numpy = importlib.import_module("numpy")
    return 100.0 * (1.0 - 10.0 ** -numpy.asarray(height))
