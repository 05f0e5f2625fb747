"""`evenload up`."""

import os
from typing import Annotated, Any

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import CommandError
from evenload.cli.options import with_settings
from evenload.settings import Settings, backend_keys

app = command_app()


def pools_of(values: dict[str, Any]) -> dict[str, Any]:
    """Make one pool out of the options.

    Raises:
        CommandError: There is a model or a policy, but no engine.
    """
    engines, models, policy = values["engine"], values["model"], values["policy"]
    if not engines:
        if models or policy:
            raise CommandError("--model and --policy describe the engines given with --engine; there is none")
        return {}
    pool = {"name": "default", "models": models or ["*"], "instances": [{"url": url} for url in engines]}
    return {"pools": [pool | ({"policy": policy} if policy else {})]}


@app.command()
@with_settings("router", "scorer", "collector", "kafka", "broker", derive=pools_of)
def up(
    settings: Settings,
    engine: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Address of an engine; may be given several times.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Model that the engines serve; without it, any.")
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="POLICY", help="How an engine is chosen.")] = None,
) -> None:
    """Run everything on this machine: Kafka, a scorer, a collector and a router for engines that run already.

    Without --kafka-bootstrap (or kafka.bootstrap in the file) it starts the embedded Kafka. The engines are those of
    --engine, else the pools of the file.
    """
    del engine, model, policy  # they are in the settings by now
    if not settings.pools:
        raise CommandError("there is nothing to route to: give --engine URL, or pools in the configuration file")
    from evenload.cli.local import run_all

    backend_keys(settings, os.environ)
    run_all(settings)
