"""`evenload keys`."""

from typing import Annotated

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import CommandError
from evenload.cli.options import with_settings
from evenload.settings import Settings

app = command_app(help="Make keys for clients, for operators and for gateways that report.", no_args_is_help=True)

# Who has the key -> the setting that names the file, and which processes read it again at SIGHUP.
_FILES = {
    "a client": ("router.keys_file", "routers"),
    "an operator": ("router.admin_keys_file", "routers"),
    "a gateway that reports": ("collector.ingest.keys_file", "collectors"),
}


@app.callback()
def _group() -> None:
    """Hold the group together: typer makes a group of an app that has a callback."""


@app.command()
@with_settings()
def new(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="Whose key it is: for the file and for metrics.")],
    rate: Annotated[float | None, typer.Option(help="Requests per second that it may make of one router.")] = None,
    burst: Annotated[float | None, typer.Option(help="Requests that may come at once; a second's worth.")] = None,
) -> None:
    """Print a new key, which is shown only now, and its line for the file of those who are let in.

    That is router.keys_file for clients, router.admin_keys_file for operators (evenload instances) and
    collector.ingest.keys_file for gateways that report telemetry: one form for all three.
    """
    from evenload.api.keys import new_key

    try:
        secret, line = new_key(name, rate, burst)
    except ValueError as error:
        raise CommandError(f"keys new: the line for {name!r} {error}") from None
    named = {
        "router.keys_file": settings.router.keys_file,
        "router.admin_keys_file": settings.router.admin_keys_file,
        "collector.ingest.keys_file": settings.collector.ingest.keys_file,
    }
    typer.echo(f"key (for {name}; it is kept nowhere): {secret}")
    typer.echo(f"line: {line}")
    typer.echo("The line goes into one of these files, then SIGHUP to who reads it:", err=True)
    for who, (key, readers) in _FILES.items():
        typer.echo(f"  {who}: {key} ({named[key] or 'not set'}), {readers}", err=True)
