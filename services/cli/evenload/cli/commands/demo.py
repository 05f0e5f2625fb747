"""`evenload demo`."""

from pathlib import Path
from typing import Annotated

import typer

from evenload.cli.apps import command_app
from evenload.cli.options import with_settings
from evenload.settings import Settings

app = command_app()


@app.command()
@with_settings("demo")
def demo(
    settings: Settings,
    *,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the summary as JSON; - is stdout.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary as markdown.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A shortened story, to try it out; it says so.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running after the story.")] = False,
) -> int:
    """Show Evenload at work: simulated engines, real Kafka, load, faults, and a summary.

    Everything runs in .evenload/demo on free ports. Exit code 1 if the story did not hold.
    """
    from evenload.demo.main import Options, run

    options = Options(
        trace=settings.demo.trace,
        rate_rps=settings.demo.rate_rps,
        seed=settings.demo.seed,
        speed=settings.demo.speed,
        json_path=json_path,
        markdown_path=markdown,
        quick=quick,
        keep=keep,
    )
    return run(settings, options)
