"""`evenload router`."""

from collections.abc import Callable

from evenload.cli.apps import command_app
from evenload.cli.options import with_settings
from evenload.settings import Settings

app = command_app()


@app.command()
@with_settings("router", "kafka")
def router(settings: Settings, again: Callable[[], Settings]) -> None:
    """Run one router replica until SIGTERM or Ctrl-C; open streams may finish. SIGHUP reads the settings again."""
    from evenload.router.main import run

    run(settings, again)
