"""The table of field cases is whole, and the tests that it names are there."""

import re
from pathlib import Path

HERE = Path(__file__).parent
NUMBERS = [*range(1, 9), *range(10, 18), *range(20, 35), *range(44, 47), *range(50, 63)]
ROWS = re.findall(r"^\| (F\d\d) \|.*\| (.*) \|$", (HERE / "CASES.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_case_has_a_row() -> None:
    assert [case for case, _ in ROWS] == [f"F{number:02}" for number in NUMBERS]


def test_every_test_that_the_table_names_is_there() -> None:
    for case, cell in ROWS:
        named = re.findall(r"`([\w./]+)::(\w+)`", cell)
        assert named, case
        for file, name in named:
            source = (HERE / file).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{case}: {file}::{name}"
