"""Workloads: public traces and our own synthetic sample as lists of arrivals, read strictly, rescaled openly.

Formats, detected by their first line:

| format | first line | notes |
|---|---|---|
| Azure CSV | `TIMESTAMP,ContextTokens,GeneratedTokens` | timestamps with up to 7 fraction digits |
| Mooncake JSON lines | `{"timestamp": ms, "input_length": n, "output_length": n, ...}` | a 3 s grid is jittered |
| any CSV | columns for arrival in seconds, prompt and output tokens | ServeGen and our sample; see `_COLUMNS` |

A row that cannot be understood is an error that names file, line and reason: a benchmark on half a trace is not one.
Whatever is done to a trace (jitter, caps, compression, superposition) is written into its `notes`; print them.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

MOONCAKE_GRID_MS: Final = 3000
GRID_TOLERANCE_MS: Final = 10
ROWS_MAX: Final = 5_000_000

_AZURE_HEADER: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_OFFSET: Final = re.compile(r"(.*?)([+-]\d\d:\d\d)?", re.DOTALL)  # the traces of 2024 end in +00:00
_COLUMNS: Final = {
    "arrival": ("arrival_s", "arrival", "at_s"),
    "prompt": ("prompt_tokens", "prompt", "input_tokens"),
    "output": ("output_tokens", "output"),
}


class TraceError(ValueError):
    """A trace that cannot be used; the message names file, line and reason."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it arrives after the start of the workload, its sizes, and hashes of its prefix blocks.

    A hash stands for a block of the prompt (512 tokens in Mooncake's traces) and everything before it.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in order of time, the first one at or after 0.

    Attributes:
        arrivals: The requests.
        duration_s: Length of the recording.
        notes: What it is and what was done to it, one sentence each.
    """

    arrivals: tuple[Arrival, ...]
    duration_s: float
    notes: tuple[str, ...]

    @property
    def rate_rps(self) -> float:
        """Mean arrivals per second."""
        return len(self.arrivals) / self.duration_s if self.duration_s > 0 else 0.0

    def windowed(self, start_s: float, duration_s: float) -> "Trace":
        """The part `[start_s, start_s + duration_s)`, starting at 0 again.

        Raises:
            ValueError: The window is empty or holds no arrival.
        """
        if start_s < 0 or duration_s <= 0:
            raise ValueError(
                f"window: start_s must not be negative and duration_s positive, got {start_s}, {duration_s}"
            )
        chosen = tuple(
            replace(arrival, at_s=arrival.at_s - start_s)
            for arrival in self.arrivals
            if start_s <= arrival.at_s < start_s + duration_s
        )
        if not chosen:
            raise ValueError(
                f"window: no arrivals in {start_s:g} s to {start_s + duration_s:g} s of {self.duration_s:g} s"
            )
        return Trace(chosen, duration_s, (*self.notes, f"window of {duration_s:g} s from {start_s:g} s"))

    def capped(self, *, prompt_tokens: int | None = None, output_tokens: int | None = None) -> "Trace":
        """Sizes cut to at most these.

        Raises:
            ValueError: A cap is below 1.
        """
        if (prompt_tokens is not None and prompt_tokens < 1) or (output_tokens is not None and output_tokens < 1):
            raise ValueError("caps must be at least 1")
        most_in, most_out = prompt_tokens or ROWS_MAX, output_tokens or ROWS_MAX
        arrivals = tuple(
            replace(a, prompt_tokens=min(a.prompt_tokens, most_in), output_tokens=min(a.output_tokens, most_out))
            for a in self.arrivals
        )
        notes = list(self.notes)
        if prompt_tokens is not None:
            cut = sum(a.prompt_tokens > prompt_tokens for a in self.arrivals)
            notes.append(f"prompts capped at {prompt_tokens} tokens ({cut} of {len(arrivals)} cut)")
        if output_tokens is not None:
            cut = sum(a.output_tokens > output_tokens for a in self.arrivals)
            notes.append(f"outputs capped at {output_tokens} tokens ({cut} of {len(arrivals)} cut)")
        return Trace(arrivals, self.duration_s, tuple(notes))

    def compressed(self, factor: float) -> "Trace":
        """Time runs `factor` times as fast: more load, and shorter bursts.

        Raises:
            ValueError: The factor is not positive.
        """
        if not factor > 0:
            raise ValueError(f"compression factor must be positive, got {factor}")
        arrivals = tuple(replace(a, at_s=a.at_s / factor) for a in self.arrivals)
        return Trace(arrivals, self.duration_s / factor, (*self.notes, f"time compressed {factor:g} x"))

    def superposed(self, copies: int, rng: Random) -> "Trace":
        """`copies` of the trace at once, each rotated by a random time: more load, bursts keep their length.

        Raises:
            ValueError: Fewer than one copy.
        """
        if copies < 1:
            raise ValueError(f"copies must be at least 1, got {copies}")
        shifts = [0.0] + [rng.random() * self.duration_s for _ in range(copies - 1)]
        arrivals = sorted(
            (replace(a, at_s=(a.at_s + shift) % self.duration_s) for shift in shifts for a in self.arrivals),
            key=lambda a: a.at_s,
        )
        note = f"superposition of {copies} copies, each rotated by a random time"
        return Trace(tuple(arrivals), self.duration_s, (*self.notes, note))

    def at_rate(self, rate_rps: float, rng: Random) -> "Trace":
        """Rescaled to a mean rate: as many rotated copies as fit, the rest by time compression (or stretching).

        Raises:
            ValueError: The rate is not positive.
        """
        if not rate_rps > 0:
            raise ValueError(f"rate must be positive, got {rate_rps}")
        copies = max(1, int(rate_rps / self.rate_rps))
        trace = self.superposed(copies, rng) if copies > 1 else self
        return trace.compressed(rate_rps / trace.rate_rps)


def read_trace(path: Path, rng: Random) -> Trace:
    """Read a trace file of any known format.

    Args:
        path: The file.
        rng: For the jitter of traces on a grid.

    Raises:
        TraceError: Not readable, not a known format, a malformed row, or no rows; names file, line and reason.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            first = lines.readline()
            lines.seek(0)
            if first.lstrip().startswith("{"):
                return _mooncake(path, lines, rng)
            return _csv(path, lines)
    except csv.Error as error:
        raise TraceError(f"{path}: is no CSV: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8 text: {error.reason}") from None


def _csv(path: Path, lines: Iterable[str]) -> Trace:
    lines = iter(lines)
    header = [name.strip() for name in next(csv.reader([next(lines, "").lstrip("\ufeff")]), [])]
    if tuple(header[:3]) == _AZURE_HEADER:
        return _trace(path, "Azure trace", _csv_rows(path, lines, (0, 1, 2), _azure_seconds))
    columns = [next((header.index(n) for n in names if n in header), None) for names in _COLUMNS.values()]
    if any(column is None for column in columns):
        known = "; ".join(f"{what}: {' or '.join(names)}" for what, names in _COLUMNS.items())
        raise TraceError(
            f"{path}:1: no known trace format: expected {','.join(_AZURE_HEADER)}, Mooncake JSON lines, or a CSV with "
            f"columns {known}; got {','.join(header)[:80]!r}"
        )
    return _trace(path, "CSV trace", _csv_rows(path, lines, [c for c in columns if c is not None], _seconds))


def _csv_rows(
    path: Path, lines: Iterable[str], columns: Sequence[int], seconds: Callable[[str], float]
) -> Iterator[Arrival]:
    reader = csv.reader(lines)
    for row in reader:
        if not row:
            continue
        line = reader.line_num + 1  # after the header
        try:
            arrival, prompt, output = (row[column] for column in columns)
            yield _arrival(seconds(arrival), _count("prompt", prompt), _count("output", output))
        except IndexError:
            raise TraceError(f"{path}:{line}: too few columns: {','.join(row)[:80]!r}") from None
        except ValueError as error:
            raise TraceError(f"{path}:{line}: {error}") from None


def _arrival(at_s: float, prompt: int, output: int) -> Arrival:
    if prompt < 1 or output < 1:
        raise ValueError(f"token counts must be at least 1, got {prompt} and {output}")
    return Arrival(at_s, prompt, output)


def _count(what: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):  # `int` also reads 1_0 and other scripts' digits
        raise ValueError(f"{what} tokens must be a whole number, got {text[:40]!r}")
    return int(digits)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"arrival must be a finite number of seconds from 0, got {text!r}")
    return value


def _azure_seconds(text: str) -> float:
    """Azure writes 100 ns digits, which `fromisoformat` refuses."""
    local, offset = _OFFSET.fullmatch(text.strip()).groups()  # type: ignore[union-attr]  # it matches any text
    whole, _, fraction = local.partition(".")
    if fraction and not fraction.isdigit():
        raise ValueError(f"timestamp {text!r}: the fraction is not a number")
    second = datetime.fromisoformat(whole + offset) if offset else datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return second.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _mooncake(path: Path, lines: Iterable[str], rng: Random) -> Trace:
    rows = list(_mooncake_rows(path, lines))
    if len(rows) < 2 or not all(_on_grid(a.at_s) for a in rows):
        return _trace(path, "Mooncake trace", rows)
    cell_s = MOONCAKE_GRID_MS / 1000
    jittered = sorted((replace(a, at_s=a.at_s + rng.random() * cell_s) for a in rows), key=lambda a: a.at_s)
    trace = _trace(path, "Mooncake trace", jittered)
    note = f"timestamps sit on a {cell_s:g} s grid: arrivals jittered uniformly inside their cell"
    return replace(trace, notes=(*trace.notes, note))


def _on_grid(at_s: float) -> bool:
    """Whether a time sits on the grid; the recorded ones are a few milliseconds off."""
    off_ms = round(at_s * 1000) % MOONCAKE_GRID_MS
    return min(off_ms, MOONCAKE_GRID_MS - off_ms) <= GRID_TOLERANCE_MS


def _mooncake_rows(path: Path, lines: Iterable[str]) -> Iterator[Arrival]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            values = [row[name] for name in ("timestamp", "input_length", "output_length")]
            if not all(isinstance(value, int) and not isinstance(value, bool) for value in values) or values[0] < 0:
                raise ValueError(f"timestamp, input_length and output_length must be whole numbers, got {values}")
            yield replace(_arrival(values[0] / 1000, values[1], values[2]), hashes=_hashes(row.get("hash_ids", [])))
        except KeyError as error:
            raise TraceError(f"{path}:{number}: field {error} is missing") from None
        except (ValueError, TypeError) as error:
            raise TraceError(f"{path}:{number}: {error}") from None


def _hashes(found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        raise ValueError("hash_ids must be a list of whole numbers")
    return tuple(found)


def _trace(path: Path, what: str, rows: Iterable[Arrival]) -> Trace:
    arrivals: list[Arrival] = []
    for arrival in rows:
        if len(arrivals) >= ROWS_MAX:
            raise TraceError(f"{path}: more than {ROWS_MAX} rows")
        arrivals.append(arrival)
    if not arrivals:
        raise TraceError(f"{path}: no rows")
    notes = [f"{what} {path.name}, {len(arrivals)} requests"]
    if any(a.at_s > b.at_s for a, b in pairwise(arrivals)):
        arrivals.sort(key=lambda a: a.at_s)
        notes.append("rows sorted by time")
    start_s = arrivals[0].at_s
    shifted = tuple(replace(a, at_s=a.at_s - start_s) for a in arrivals)
    mean_gap_s = shifted[-1].at_s / max(1, len(shifted) - 1)
    return Trace(shifted, shifted[-1].at_s + mean_gap_s, tuple(notes))
