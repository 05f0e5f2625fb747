"""The table of docs/conformance.md has every check, and tells what did not hold."""

from pathlib import Path
from typing import Any

from .matrix import FILES, HERE, checks, table, text_of

PAGE = HERE.parents[1] / "docs" / "conformance.md"


def run(name: str, **outcomes: str) -> dict[str, Any]:
    """Results in which all checks passed but some."""
    names = [check for _, checks_of in checks() for check in checks_of]
    found = {
        check: {"outcome": outcomes.get(check.partition("::test_")[2], "passed"), "detail": "x"} for check in names
    }
    return {"name": name, "title": name, "absent": "", "checks": found}


def test_every_file_of_checks_is_in_the_table() -> None:
    files = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")} - {Path(__file__).stem[5:]}
    assert files == set(FILES)


def test_the_page_has_a_row_for_each_check() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [name for _, names in checks() for name in names if f"| {text_of(name)} |" not in page]
    assert not missing, f"run `make conformance-matrix`: {missing}"


def test_a_check_that_fails_is_a_no_and_what_was_seen_is_told() -> None:
    bad = run("bad", an_unknown_path_is_a_404="failed", a_stream_passes_byte_for_byte="skipped")
    absent = {"name": "gone", "title": "", "absent": "gone: no wheel for this machine", "checks": {}}
    text = "\n".join(table([run("good"), bad, absent]))
    assert "| an unknown path is a 404 | yes | **no** |" in text
    assert "| a stream passes byte for byte | yes | – |" in text
    assert "- an unknown path is a 404: `x`" in text
    assert "Not in the table: gone: no wheel for this machine" in text
    total = sum(len(names) for _, names in checks())
    assert f"| **of {total} checks hold** | {total} | {total - 2} |" in text


def test_of_a_check_with_parameters_the_worst_counts() -> None:
    one = run("one")
    name = next(iter(one["checks"]))
    one["checks"][f"{name}[a]"] = {"outcome": "failed", "detail": "seen"}
    assert any(line.endswith("| **no** |") for line in table([one]))
