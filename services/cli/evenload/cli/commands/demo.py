"""`evenload demo`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import CommandError
from evenload.cli.options import with_settings
from evenload.settings import Settings

app = command_app()
Story = Literal["faults", "providers"]


@app.command()
@with_settings("demo")
def demo(
    settings: Settings,
    *,
    story: Annotated[
        Story,
        typer.Option(
            metavar="STORY",
            help="faults: engines, every kind of fault. providers: one of six slows from 200 to 3500 ms.",
        ),
    ] = "faults",
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
    from evenload.demo.main import Options

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
    if story == "providers":
        if settings.demo.trace is not None:
            raise CommandError("--story providers makes its own arrivals; leave --trace out")
        from evenload.demo.providers import run as run_providers

        return run_providers(settings, options)
    from evenload.demo.main import run

    return run(settings, options)
