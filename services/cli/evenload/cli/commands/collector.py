"""`evenload collector`."""

from collections.abc import Callable

from evenload.cli.apps import command_app
from evenload.cli.options import with_settings
from evenload.settings import Settings

app = command_app()


@app.command()
@with_settings("collector", "kafka")
def collector(settings: Settings, again: Callable[[], Settings]) -> None:
    """Poll the gauges of every engine and publish them. SIGHUP reads the pools again."""
    from evenload.collector.main import run

    run(settings, again)
