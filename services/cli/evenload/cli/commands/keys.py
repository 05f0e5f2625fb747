"""`evenload keys`."""

from typing import Annotated

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import CommandError
from evenload.cli.options import with_settings
from evenload.settings import Settings

app = command_app(help="Make client keys for the router.", no_args_is_help=True)


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
    """Print a new key, which is shown only now, and its line for the file that router.keys_file names."""
    from evenload.api.keys import new_key

    try:
        secret, line = new_key(name, rate, burst)
    except ValueError as error:
        raise CommandError(f"keys new: the line for {name!r} {error}") from None
    typer.echo(f"key (for the client; it is kept nowhere): {secret}")
    file = settings.router.keys_file or "the file that router.keys_file is to name"
    typer.echo(f"line (for {file}; then SIGHUP to the routers): {line}")
