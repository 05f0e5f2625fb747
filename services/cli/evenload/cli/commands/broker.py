"""`evenload broker`."""

from evenload.cli.apps import command_app
from evenload.cli.options import with_settings
from evenload.settings import Settings

app = command_app()


@app.command()
@with_settings("broker")
def broker(settings: Settings) -> None:
    """Run a real Apache Kafka on this machine: no Docker, no Java to install. Its data survives restarts."""
    from evenload.cli.local import run_broker

    run_broker(settings)
