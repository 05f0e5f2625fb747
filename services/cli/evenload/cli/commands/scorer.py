"""`evenload scorer`."""

from evenload.cli.apps import command_app
from evenload.cli.options import with_settings
from evenload.settings import Settings

app = command_app()


@app.command()
@with_settings("scorer", "kafka")
def scorer(settings: Settings) -> None:
    """Run one scorer worker: fold telemetry into scores and publish snapshots."""
    from evenload.scorer.main import run

    run(settings)
