"""`evenload demo`."""

from pathlib import Path
from typing import Annotated

import typer

from evenload.cli.apps import command_app
from evenload.cli.options import Json, with_settings
from evenload.settings import Settings

app = command_app()


@app.command()
@with_settings("broker")
def demo(
    settings: Settings,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Arrivals and sizes: Azure LLM (CSV) or Mooncake (JSONL). A sample is shipped."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show Evenload at work: simulated engines, real Kafka, load, faults, and a summary.

    Exit code 1 if the story did not hold.
    """
    from evenload.demo.main import run

    code: int = run(settings, trace=trace, as_json=as_json)
    return code
