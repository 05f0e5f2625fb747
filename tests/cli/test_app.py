import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.cli.app import COMMANDS, load_command, main
from evenload.cli.errors import EXIT_CODES, describe
from evenload.schemas.version import __version__
from evenload.settings import Settings
from evenload.settings.reference import entries

# Not pydantic: typer itself uses it.
HEAVY = {
    "aiokafka",
    "fastapi",
    "faust",
    "jgo",
    "mode",
    "prometheus_client",
    "pydantic_settings",
    "rich",
    "starlette",
    "uvicorn",
    "yaml",
}

STANDALONE = {"version", "sim"}  # they read no settings
WITH_VERDICT = {"version", "doctor", "demo", "topics", "audit"}


def leaves() -> list[list[str]]:
    """All commands that run something: `["up"]`, `["topics", "list"]`."""
    found: list[list[str]] = []
    for name in COMMANDS:
        inner: dict[str, object] = getattr(load_command(name), "commands", {})
        found += [[name, sub] for sub in inner] or [[name]]
    return found


LEAVES = leaves()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["version", "--json"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from evenload.cli.app import main
try:
    main({arguments!r})
finally:
    print("modules:", *sorted({{name.split(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("modules:")[2].split())
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_every_command_has_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert run(name, "--help") == 0
        assert load_command(name).help
        assert f"evenload {name}" in capsys.readouterr().out


@pytest.mark.parametrize("command", [leaf for leaf in LEAVES if leaf[0] not in STANDALONE], ids=" ".join)
def test_every_command_has_the_common_options(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "--help") == 0
    words = capsys.readouterr().out.split()
    assert {"--config", "--log-level"} <= set(words)


@pytest.mark.parametrize("command", [leaf for leaf in LEAVES if leaf[0] in WITH_VERDICT], ids=" ".join)
def test_every_command_that_prints_a_table_or_a_verdict_has_json(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--help") == 0
    assert "--json" in capsys.readouterr().out.split()


@pytest.mark.parametrize("command", ["router", "scorer", "collector", "broker"])
def test_every_key_of_a_service_is_an_option_and_names_its_variable(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "--help") == 0
    words = capsys.readouterr().out.split()
    keys = [entry for entry in entries(Settings) if entry.key.startswith(f"{command}.")]
    assert keys
    for entry in keys:
        assert f"--{entry.key.split('.', 1)[1].replace('_', '-').replace('.', '-')}" in words
        assert f"{entry.env}]" in "".join(words)  # long names are broken over two lines


def test_version_is_printed_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("version") == 0
    assert capsys.readouterr().out.startswith(f"evenload {__version__} ")
    assert run("version", "--json") == 0
    assert json.loads(capsys.readouterr().out)["evenload"] == __version__


def test_a_mistyped_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rooter") == 2
    assert "Did you mean 'router'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["router", "--port", "0"], "evenload: command line: router.port: must be greater than or equal to 1"),
        (["router", "--config", "none.yaml"], "evenload: none.yaml: cannot be read: No such file or directory"),
        (["topics", "check", "--partitions", "x"], "evenload: command line: kafka.partitions: must be a valid integer"),
        (["up"], "evenload: there is nothing to route to: give --engine URL"),
        (["up", "--model", "m"], "evenload: --model and --policy describe the engines"),
        (["up", "--engine", "h:1"], "evenload: command line: pools[0].instances[0].url: must be http(s)://"),
        (["up", "--engine", "http://h:1", "--policy", "best"], "evenload: command line: pools[0].policy: must be"),
    ],
)
def test_a_mistake_of_the_user_is_a_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(message)
    assert "Traceback" not in shown


def test_an_unknown_key_of_the_file_stops_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    Path("evenload.yaml").write_text("router:\n  prot: 1\n")
    assert run("router") == 2
    assert capsys.readouterr().err == "evenload: evenload.yaml:2: router.prot: unknown key; did you mean 'port'?\n"


def test_a_kafka_that_is_not_there_is_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenload.bus import topics

    async def away(*_: object, **__: object) -> None:
        raise topics.BusUnavailable("no usable Kafka at 127.0.0.1:1")

    monkeypatch.setattr(topics, "describe_topics", away)
    assert run("topics", "check") == 3
    assert capsys.readouterr().err == "evenload: no usable Kafka at 127.0.0.1:1\n"


@pytest.mark.parametrize("name", EXIT_CODES)
def test_every_error_with_an_exit_code_exists(name: str) -> None:
    module, _, cls = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), cls), Exception)


def test_a_missing_extra_is_named() -> None:
    assert describe(ModuleNotFoundError("x", name="faust.app")) == (
        3,
        ["faust is not installed: pip install 'evenload[scorer]'"],
    )


def test_a_fault_of_ours_is_exit_code_70_with_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenload.cli.commands import version

    monkeypatch.setattr(version, "print_json", lambda _: 1 / 0)
    assert run("version", "--json") == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_ctrl_c_is_exit_code_130_and_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from evenload.cli.commands import version

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(version, "print_json", interrupt)
    assert run("version", "--json") == 130
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
