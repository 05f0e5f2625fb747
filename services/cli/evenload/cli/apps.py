"""How every typer app of the command line looks."""

from typing import Any

import typer


def command_app(**more: Any) -> typer.Typer:
    """Make an app with plain help and without tracebacks of its own: `app.main` maps errors."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **more)
