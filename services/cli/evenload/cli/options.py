"""Options of sub-commands, made from the settings' own fields: each is a key of the file and a variable as well."""

import inspect
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from evenload.cli.logs import setup_logging
from evenload.settings import Settings, load_settings
from evenload.settings.reference import Entry, entries

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML file of settings. [env: EVENLOAD_CONFIG] [./evenload.yaml]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AGAIN = "again"
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def with_settings(
    *sections: str, derive: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Give a command the settings, and options for all keys of some of their sections.

    The options of the first section have the names of its keys, those of the others have the section in front:
    `router.port` is `--port`, `router.admission.queue_max` is `--admission-queue-max`, `kafka.bootstrap` is
    `--kafka-bootstrap`. Values stay text: the settings' own validation reads and judges them, so that the same mistake
    gives the same message from any source.

    Args:
        sections: Names of sections; `log` is always added.
        derive: Makes more settings out of the values of the command's own options.

    Returns:
        A decorator for a function whose first parameter is `settings`; one named `again` gets a function that loads
        them once more from the same sources. What it returns is the exit code, None for 0.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        keys: dict[str, str] = {}
        given = dict(inspect.signature(function, eval_str=True).parameters)
        generated = [
            inspect.Parameter("config", KEYWORD, default=None, annotation=Config),
            *(_parameter(entry, name, keys) for entry, name in _options(sections)),
        ]

        def command(config: Path | None = None, **values: Any) -> None:
            overrides = {keys[name]: values.pop(name) for name in list(values) if name in keys}
            load = partial(load_settings, config, overrides | (derive(values) if derive else {}))
            settings = load()
            setup_logging(settings.log, function.__name__.replace("_", "-"))
            code = function(settings, **values, **({AGAIN: load} if AGAIN in given else {}))
            if code:
                raise typer.Exit(code)

        own = [p.replace(kind=KEYWORD) for p in list(given.values())[1:] if p.name != AGAIN]
        parameters = [*own, *generated]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return decorate


def _options(sections: tuple[str, ...]) -> typing.Iterator[tuple[Entry, str]]:
    """Pair each key of the sections with the name of its option."""
    for section in (*sections, "log"):
        for entry in entries(Settings):
            if entry.key.startswith(f"{section}."):
                key = entry.key.removeprefix(f"{section}.").replace(".", "_")
                yield entry, key if sections[:1] == (section,) else f"{section}_{key}"


def _parameter(entry: Entry, name: str, keys: dict[str, str]) -> inspect.Parameter:
    keys[name] = entry.key
    help_text = f"{entry.description} [default: {entry.default.strip('`')}] [env: {entry.env}]"
    metavar = entry.kind.replace(" \\| `null`", "").replace("`", "").replace(" \\| ", "|").upper()
    option = typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=help_text)
    return inspect.Parameter(name, KEYWORD, default=None, annotation=Annotated[str | None, option])
