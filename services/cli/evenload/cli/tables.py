"""Printing rows: a table for people, JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

STATUS_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

_ENDLESS = 100_000  # columns


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, title: str | None = None) -> None:
    """Print rows that have the same keys.

    Args:
        rows: What to print; the keys of the first are the columns. A cell that is a status is coloured. Where nobody
            reads it from a terminal, no line is broken, however long.
        as_json: Print a JSON list of objects instead.
        title: Line above the table.
    """
    if as_json:
        print_json([dict(row) for row in rows])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_edge=False)
    for column in rows[0] if rows else ():
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value), style=STATUS_STYLES.get(_cell(value), "")) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console.width = _ENDLESS
    console.print(table, crop=False, no_wrap=not console.is_terminal)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)
