"""The table of rights: in the documentation, and as commands."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from evenload.bus.rights import OPERATIONS, RIGHTS
from evenload.bus.topics import TopicNames
from evenload.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"
ROW = re.compile(r"\| (\w+) \| (topic ([\w-]+)|group `scorer\.app_id`) \| ([\w, ]+) \|")


def test_the_page_has_the_table_row_for_row() -> None:
    written = [
        (row[1], (row[3] or "group").replace("-", "_"), tuple(row[4].split(", ")))
        for row in map(ROW.fullmatch, PAGE.read_text(encoding="utf-8").splitlines())
        if row
    ]
    assert written == [(process, what, ops) for process, uses in RIGHTS.items() for what, ops in uses.items()]


def test_every_row_is_of_a_topic_or_the_group_and_of_known_operations() -> None:
    for uses in RIGHTS.values():
        assert uses.keys() <= {*TopicNames._fields, "group"}
        assert all(set(operations) <= OPERATIONS.keys() for operations in uses.values())


def acls(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["topics", "acls", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_commands_have_the_names_of_the_installation() -> None:
    lines = acls("--topic-prefix", "prod", "--bootstrap", "k:9094", "--process", "scorer").splitlines()
    assert len(lines) == sum(len(operations) for operations in RIGHTS["scorer"].values())
    begin = (
        "kafka-acls.sh --bootstrap-server k:9094 --command-config admin.properties --add --allow-principal User:scorer"
    )
    assert lines[0] == f"{begin} --operation Read --topic prod.telemetry"
    assert lines[-1] == f"{begin} --operation Read --group evenload-scorer"


def test_json_has_every_right_and_a_principal_of_ones_own() -> None:
    rows = json.loads(acls("--json", "--principal", "User:CN={process},O=x"))
    assert len(rows) == sum(len(operations) for uses in RIGHTS.values() for operations in uses.values())
    assert "--allow-principal User:CN=router,O=x" in rows[0]["command"]


def test_a_principal_is_one_word_for_the_shell() -> None:
    rows = json.loads(acls("--json", "--process", "router", "--principal", "User:a b; ls"))
    assert "--allow-principal 'User:a b; ls' --operation" in rows[0]["command"]


def test_a_process_that_there_is_not_is_refused() -> None:
    done = CliRunner().invoke(app, ["topics", "acls", "--process", "routr"])
    assert done.exit_code != 0
    assert "routr" in str(done.exception)
