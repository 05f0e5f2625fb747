"""What the viewer sees while the story is played: a live table in a terminal, plain lines elsewhere."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evenload.demo.checks import WINDOW_S
from evenload.demo.director import Moment
from evenload.demo.lane import Lane
from evenload.demo.load import Result, percentile
from evenload.demo.load_client import Outcome
from evenload.demo.observe import attempt_shares
from evenload.demo.story import Step

PLAIN_EVERY_S: Final = 2.0
EVENTS_MAX: Final = 12
ROWS_OF_A_LANE: Final = 6  # besides its engines: title, two of the header, routers, clients, an empty one
RECENT_MAX: Final = 2000  # results looked at for the figures of the last seconds


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine's line."""

    name: str
    score: float | None
    terms: tuple[float, float, float]
    in_flight: int
    share: float
    ttft_p50_ms: float | None


def engine_rows(lane: Lane) -> list[EngineRow]:
    """What is known of each engine of a lane now."""
    if not lane.samples:
        return []
    sample = lane.samples[-1]
    shares = attempt_shares(lane.samples[-40:], sample.at_s - WINDOW_S, sample.at_s)
    recent = recent_results(lane)
    rows = []
    for name in lane.engines.names:
        view = sample.engine(name)
        times = [r.ttft_ms for r in recent if r.instance == name and r.ttft_ms is not None]
        terms = (view.ttft_term, view.error_term, view.queue_term) if view else (0.0, 0.0, 0.0)
        p50_ms = percentile(times, 50) if times else None
        rows.append(
            EngineRow(name, view.score if view else None, terms, sample.in_flight(name), shares.get(name, 0.0), p50_ms)
        )
    return rows


def recent_results(lane: Lane) -> list[Result]:
    """Results that came in the last seconds."""
    if lane.load is None:
        return []
    since_s = lane.load.now_s() - WINDOW_S
    return [r for r in lane.load.results[-RECENT_MAX:] if r.at_s + r.duration_ms / 1000 >= since_s]


def router_words(lane: Lane) -> list[tuple[str, str, bool]]:
    """(name, state, whether all is well) of each router."""
    if not lane.samples:
        return []
    found = []
    for name, view in zip(lane.router_names, lane.samples[-1].routers, strict=True):
        if view is None:
            found.append((name, "down", False))
            continue
        waiting = view.telemetry.get("events_buffered", 0.0)
        old = view.telemetry.get("oldest_unsent_ms", 0.0) > 2000
        words = f"serves, view {view.view}" + (f", {waiting:.0f} events wait" if old else "")
        found.append((name, words, view.view == "fresh" and not old))
    return found


class _Base(ABC):
    """What both views share: the lanes, and lines about events."""

    def __init__(self) -> None:
        self.lanes: Sequence[Lane] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @abstractmethod
    def say(self, text: str) -> None:
        """A line that stays."""


class PlainView(_Base):
    """One line per event and one every two seconds."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._shown_s = 0.0

    def say(self, text: str) -> None:
        """A line."""
        print(text, file=self._stream, flush=True)

    def begin(self, step: Step, elapsed_s: float) -> None:
        """A line about the step."""
        self.say(f"[{elapsed_s:5.0f} s] {step.title}")

    def update(self, moment: Moment) -> None:
        """A line of figures, if it is time for one."""
        now_s = time.monotonic()
        if now_s - self._shown_s < PLAIN_EVERY_S:
            return
        self._shown_s = now_s
        for lane in self.lanes:
            self.say(f"[{moment.elapsed_s:5.0f} s]   {plain_line(lane, moment)}")


def plain_line(lane: Lane, moment: Moment) -> str:
    """Scores with shares, and what clients see, in one line."""
    rows = engine_rows(lane)
    engines = " ".join(f"{'-' if r.score is None else f'{r.score:.0f}'}/{r.share:.0%}" for r in rows)
    routers = " ".join("up" if view else "DOWN" for view in lane.samples[-1].routers) if lane.samples else "-"
    kafka = "up" if moment.broker_running else "DOWN"
    return f"{lane.name:<17} score/share {engines} | {client_words(lane)} | routers {routers}, kafka {kafka}"


def client_words(lane: Lane) -> str:
    """What clients saw, in a few words."""
    if lane.load is None:
        return ""
    recent = recent_results(lane)
    times = [r.ttft_ms for r in recent if r.ttft_ms is not None]
    p50 = f"{percentile(times, 50):.0f}/{percentile(times, 99):.0f} ms" if times else "-"
    failed = [r for r in lane.load.results if not r.ok]
    # A lane with two routers has one killed, with the streams on it; the checks look at when exactly.
    cut = sum(r.outcome is Outcome.CUT and r.router == lane.routers[-1] for r in failed) if lane.routers[1:] else 0
    words = f"{len(failed) - cut} failed" + (f", {cut} cut with their router" if cut else "")
    return f"{len(lane.load.results)} answered, {words}, p50/p99 TTFT {p50}"


class LiveView(_Base):
    """A table that is redrawn in place, with the last events below it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._events: deque[str] = deque(maxlen=EVENTS_MAX)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._started = False

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._live.stop()
            self._started = False

    def say(self, text: str) -> None:
        """A line above the table."""
        self._console.print(text, highlight=False)

    def begin(self, step: Step, elapsed_s: float) -> None:
        """Add the step to the events."""
        if not self._started:
            self._live.start()
            self._started = True
        self._events.append(f"{elapsed_s:4.0f} s  {step.title}")

    def update(self, moment: Moment) -> None:
        """Draw anew."""
        self._live.update(self._picture(moment), refresh=True)

    def _picture(self, moment: Moment) -> RenderableType:
        left = moment.step.seconds - moment.step_s
        more = "until it holds" if moment.step.until else f"{left:.0f} s more"
        head = Text.assemble((f" {moment.elapsed_s:4.0f} s  ", "bold"), (moment.step.title, "bold cyan"), f"  ({more})")
        parts: list[RenderableType] = [head, Text()]
        for lane in self.lanes:
            parts += [_table(lane, moment.step), _state_line(lane, moment), Text()]
        room = self._console.height - 3 - sum(ROWS_OF_A_LANE + len(lane.engines.names) for lane in self.lanes)
        events = list(self._events)[:-1][-max(0, room) :] if room > 0 else []
        parts += [Text(f" {event}", style="dim") for event in events]
        return Group(*parts)


def _table(lane: Lane, step: Step) -> Table:
    sick = lane.engines.names[step.engine] if step.fault and step.engine is not None else None
    table = Table(title=f" {lane.name}", title_justify="left", show_edge=False, pad_edge=True, title_style="bold")
    for name in ("engine", "score", "", "ttft", "error", "queue", "in flight", "share", "", "TTFT p50"):
        table.add_column(name, justify="left" if name in ("engine", "") else "right", no_wrap=True)
    for row in engine_rows(lane):
        score = row.score
        style = "" if score is None else "green" if score >= 85 else "yellow" if score >= 60 else "bold red"
        table.add_row(
            Text(row.name, style="bold red" if row.name == sick else ""),
            Text("-" if score is None else f"{score:.0f}", style=style),
            Text(bar((score or 0.0) / 100, 12), style=style),
            *(Text(f"{term:.2f}", style="red" if term >= 0.2 else "") for term in row.terms),
            str(row.in_flight),
            f"{row.share:.1%}",
            Text(bar(row.share / 0.4, 12), style="blue"),
            "-" if row.ttft_p50_ms is None else f"{row.ttft_p50_ms:.0f} ms",
        )
    return table


def bar(fraction: float, width: int) -> str:
    """A bar of blocks, `width` wide at 1, padded with spaces."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def _state_line(lane: Lane, moment: Moment) -> Text:
    line = Text(" ")
    for name, words, good in router_words(lane):
        line.append(f"{name}: {words}", style="" if good else "yellow" if words != "down" else "bold red").append("  ")
    kafka = ("kafka: up", "") if moment.broker_running else ("kafka: DOWN", "bold red")
    line.append(*kafka)
    for name, up in lane.services():
        line.append(f"  {name}: {'up' if up else 'DOWN'}", style="" if up else "bold red")
    return line.append(f"\n clients: {client_words(lane)}")
