"""`evenload doctor`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import EXIT_OK, EXIT_VERDICT
from evenload.cli.options import Config, Json
from evenload.cli.tables import print_rows
from evenload.settings import LogLevel, Settings, SettingsError, config_path, load_settings

app = command_app()


@app.command()
def doctor(
    config: Config = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="Least level that is written.")] = None,
    as_json: Json = False,
) -> None:
    """Check this machine, the configuration, Kafka and every engine; exit code 1 if anything fails."""
    from evenload.cli.checks import run_checks
    from evenload.cli.logs import setup_logging

    settings, rows = _settings_rows(config, log_level)
    setup_logging(settings.log, "doctor")
    rows += run_checks(settings, embedded="bootstrap" not in settings.kafka.model_fields_set)
    print_rows(rows, as_json=as_json)
    raise typer.Exit(EXIT_VERDICT if any(row["status"] == "fail" for row in rows) else EXIT_OK)


def _settings_rows(config: Path | None, log_level: str | None) -> tuple[Settings, list[dict[str, str]]]:
    """Load the settings; when they are bad, say so and go on with the defaults."""
    path = config_path(config, os.environ)
    try:
        settings = load_settings(config, {"log.level": log_level})
    except SettingsError as error:
        rows = [
            _row("fail", str(problem), "correct it; the rest is checked with defaults") for problem in error.problems
        ]
        return Settings(), rows
    if path is None:
        return settings, [_row("warn", "no file: defaults and environment", "copy evenload.yaml.example")]
    return settings, [_row("ok", f"{path}: {len(settings.pools)} pools", "")]


def _row(status: str, seen: str, todo: str) -> dict[str, str]:
    return {"check": "settings", "status": status, "seen": seen, "todo": todo}
