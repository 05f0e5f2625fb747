"""`evenload audit`."""

from typing import Annotated

import typer

from evenload.cli.apps import command_app
from evenload.cli.options import Json, with_settings
from evenload.settings import Settings

app = command_app()


@app.command()
@with_settings("kafka")
def audit(
    settings: Settings,
    request: Annotated[str | None, typer.Option(metavar="ID", help="Explain the decisions of one request.")] = None,
    minutes: Annotated[
        int, typer.Option(min=1, max=10_080, metavar="INTEGER", help="How far back to look. [default: 15]")
    ] = 15,
    as_json: Json = False,
) -> int:
    """Recompute past decisions and scores from the topics and compare them with what was recorded.

    Exit code 1 if any differs; what cannot be verified is counted, not failed.
    """
    from evenload.audit.main import run

    return run(settings, request=request, minutes=minutes, as_json=as_json)
