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
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Arrivals and sizes: Azure LLM (CSV) or Mooncake (JSONL). A sample is shipped."
        ),
    ] = None,
    rate: Annotated[float, typer.Option(metavar="RPS", help="Mean requests per second, on each fleet.")] = 18.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 1,
    speed: Annotated[
        float | None, typer.Option(help="Engine time per wall time. Without it, it fits the trace: TTFT about 200 ms.")
    ] = None,
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
        trace=trace,
        rate_rps=rate,
        seed=seed,
        speed=speed,
        json_path=json_path,
        markdown_path=markdown,
        quick=quick,
        keep=keep,
    )
    return run(settings, options)
