"""schemas/README.md is the field reference: it names every field, and its snippet runs."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect as inspection

from evenload.schemas import encode
from tests.schemas.samples import SAMPLES
from tests.schemas.test_text_fields import MESSAGES, structs_below

README = (Path(__file__).parents[2] / "schemas" / "README.md").read_text()
STRUCTS: dict[str, Any] = {
    struct.cls.__name__: struct.cls for info in inspection.multi_type_info(MESSAGES) for struct in structs_below(info)
}
EVENT_FIELDS = {"instance", "gen", "at"}
WRITTEN = {"None": "nil", "True": "true", "False": "false", "": '""', "0.0": "0"}


def rows_of(heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table below a heading by field name."""
    section = README.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    table = section.split("|---|---|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    return {row[0].strip("`"): row for row in cells}


def common(struct: Any) -> set[str]:
    return EVENT_FIELDS if set(struct.__struct_fields__) >= EVENT_FIELDS else set()


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_the_reference_has_every_field_and_no_other(name: str) -> None:
    struct = STRUCTS[name]
    fields = [field for field in struct.__struct_fields__ if field not in common(struct)]
    assert sorted(rows_of(f"`{name}`")) == sorted(fields)


def test_the_fields_of_every_event_are_described_once() -> None:
    assert set(rows_of("Every event")) == EVENT_FIELDS


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_the_reference_has_the_defaults_of_the_code(name: str) -> None:
    rows = rows_of(f"`{name}`")
    for field in msgspec.structs.fields(STRUCTS[name]):
        if field.name in common(STRUCTS[name]):
            continue
        if field.required:
            expected = "—"
        elif field.default is msgspec.NODEFAULT:
            expected = {"ok": "ten zeros", "err": "ten zeros", "tried": "[]"}.get(field.name, "{}")
        else:
            expected = WRITTEN.get(str(field.default), str(field.default))
        assert rows[field.name][3] == expected, field.name


def test_the_reference_names_the_tag_of_every_message_and_event() -> None:
    for name, struct in STRUCTS.items():
        tag = struct.__struct_config__.tag
        section = README.split(f"### `{name}`\n", 1)[1].split("\n#", 1)[0]
        assert (f"`type: {tag}`" in section) == (tag is not None)


def test_the_snippet_runs_with_nothing_but_msgpack(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(snippet, "README.md", "exec"), {"data": encode(SAMPLES["batch_full"].message)})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "router-0 first_token a 212.5"
    assert len(lines) == 6
