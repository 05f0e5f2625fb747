"""`evenload version`."""

import platform

import typer

from evenload.cli.apps import command_app
from evenload.cli.tables import print_json
from evenload.schemas.version import __version__

app = command_app()


@app.command()
def version(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Print the version of Evenload and of Python."""
    if as_json:
        print_json({"evenload": __version__, "python": platform.python_version()})
    else:
        print(f"evenload {__version__} (Python {platform.python_version()})")
