"""What the checks found, as JSON; `python -m tests.conformance.matrix` makes docs/conformance.md's table of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DETAIL_CHARS_MAX = 200
HERE = Path(__file__).parent


class Results:
    """A pytest plugin that notes each check of this folder.

    Attributes:
        name: of the proxy; also that of its column.
        title: the same with its version.
        absent: why there is no proxy to be checked.
    """

    def __init__(self, path: Path) -> None:
        self.name = self.title = self.absent = ""
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Note the outcome; of a failure, what was seen."""
        report: pytest.TestReport = yield  # type: ignore[assignment]
        if item.path.parent == HERE and (call.when == "call" or report.outcome != "passed"):
            detail = "" if call.excinfo is None else _detail(call.excinfo)
            outcome = "failed" if hasattr(report, "wasxfail") else report.outcome
            self._found[_check(item)] = {"outcome": outcome, "detail": detail}
        return report  # type: ignore[return-value]

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        found = {"name": self.name, "title": self.title, "absent": self.absent, "checks": self._found}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _check(item: pytest.Item) -> str:
    return f"{item.path.stem}::{item.name}"


def _detail(excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    if isinstance(excinfo.value, pytest.skip.Exception | pytest.fail.Exception):
        text = str(excinfo.value.msg)
    else:
        text = excinfo.exconly().removeprefix("AssertionError: ")
    return " ".join(text.partition("\nassert ")[0].split())[:DETAIL_CHARS_MAX]
