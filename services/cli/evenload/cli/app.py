"""The command `evenload`: finds a sub-command, loads only what it needs, and turns errors into exit codes."""

import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from evenload.cli.apps import command_app
from evenload.cli.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, describe

# Sub-command -> one line of help. The module of the same name in `commands/` is imported when it is called, so that
# `evenload version` does not wait for Faust.
COMMANDS = {
    "up": "Run everything on this machine, for engines that run already.",
    "demo": "Show it: simulated engines, load, faults, and a summary of how routing held.",
    "router": "Run one router replica.",
    "scorer": "Run one scorer worker.",
    "collector": "Run the poller of the engines' gauges.",
    "broker": "Run the embedded Apache Kafka alone.",
    "instances": "List, add, remove, drain and undrain instances of running routers.",
    "keys": "Make keys for clients and operators of the router.",
    "topics": "Create, list and check the Kafka topics.",
    "sim": "Simulate the fleet in virtual time: run a scenario, compare policies.",
    "audit": "Recompute past routing decisions and scores from the topics.",
    "doctor": "Check this machine, the configuration, Kafka and every engine.",
    "version": "Print the version.",
}


class LazyGroup(TyperGroup):
    """A group that knows its sub-commands by name and imports one when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Return the names in the order of help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's signature
        """Return a stand-in that is good enough for help; `resolve_command` loads the real one."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that was called."""
        self.commands = {name: self.get_command(ctx, name) for name in COMMANDS}  # for "did you mean"
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(command.name or ""), rest


def load_command(name: str) -> Any:
    """Import `commands/NAME.py` and build its command."""
    module = importlib.import_module(f"evenload.cli.commands.{name}")
    command = get_command(module.app)
    command.name, command.help = name, command.help or COMMANDS[name]
    return command


app = command_app(
    cls=LazyGroup,
    no_args_is_help=True,
    help="Evenload spreads LLM requests over a fleet of engines, and can explain every decision.",
)


@app.callback()
def _root() -> None:
    """Hold the group together: typer makes a group of an app that has a callback."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit; the one place where errors become exit codes.

    Raises:
        SystemExit: Always; codes are in `errors.py`.
    """
    try:
        get_command(app)(args=None if argv is None else list(argv), prog_name="evenload")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        code, lines = describe(error)
        if code == EXIT_INTERNAL:
            traceback.print_exc()  # a fault of ours: the traceback is what helps
        for line in lines:
            print(f"evenload: {line}", file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
