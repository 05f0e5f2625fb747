import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from evenload.cli.logs import CAUSES_MAX, RepeatFilter, setup_logging
from evenload.settings import LogSettings
from evenload.settings.problems import EVERY


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_record_is_one_line_of_time_level_service_and_message() -> None:
    stream = io.StringIO()
    setup_logging(LogSettings(), "router", stream)
    logging.getLogger("x").info("two\nlines %d", 1)
    logging.getLogger("x").debug("not shown")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO router two\\nlines 1\n", stream.getvalue())


def test_json_has_the_same_parts_and_the_traceback() -> None:
    stream = io.StringIO()
    setup_logging(LogSettings(format="json"), "scorer", stream)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("x").exception("failed")
    record = json.loads(stream.getvalue())
    assert (record["level"], record["service"], record["logger"]) == ("error", "scorer", "x")
    assert record["message"].startswith("failed\nTraceback")


def test_libraries_that_talk_too_much_are_held_to_warnings() -> None:
    stream = io.StringIO()
    setup_logging(LogSettings(level="debug"), "router", stream)
    logging.getLogger("aiokafka.conn").info("connected")
    logging.getLogger("evenload.router").debug("chosen")
    assert stream.getvalue().splitlines() == [stream.getvalue().splitlines()[0]]
    assert stream.getvalue().endswith("chosen\n")


def warning(message: str, line: int = 1) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "x.py", line, message, (), None)


def test_one_warning_per_cause_passes_in_ten_seconds_and_the_next_counts_the_rest() -> None:
    now = [0.0]
    repeats = RepeatFilter(clock=lambda: now[0])
    passed = []
    for second in range(0, 25):
        now[0] = float(second)
        record = warning(f"broker is down, try {second}")
        if repeats.filter(record):
            passed.append((second, record.__dict__["repeated"]))
    assert passed == [(0, 0), (10, 9), (20, 9)]


def test_other_causes_and_infos_are_not_held_back() -> None:
    repeats = RepeatFilter(clock=lambda: 0.0)
    assert repeats.filter(warning("a is down"))
    assert repeats.filter(warning("b is down"))
    assert repeats.filter(warning("a is down", line=2))
    assert not repeats.filter(warning("a is down"))
    info = logging.LogRecord("x", logging.INFO, "x.py", 1, "a is down", (), None)
    assert repeats.filter(info)
    assert repeats.filter(info)


def test_the_table_of_causes_is_bounded() -> None:
    repeats = RepeatFilter(clock=lambda: 0.0)
    for number in range(3 * CAUSES_MAX):
        repeats.filter(warning("down", line=number))
    assert len(repeats._causes) == CAUSES_MAX


def test_what_somebody_has_just_asked_for_is_always_told() -> None:
    stream = io.StringIO()
    setup_logging(LogSettings(), "router", stream)
    for port in (1, 2, 2):
        logging.getLogger("x").error("h:%d: no key", port, extra=EVERY)
    assert [line.partition("h:")[2] for line in stream.getvalue().splitlines()] == [
        "1: no key",
        "2: no key",
        "2: no key",
    ]


def test_signatures_are_not_explained_in_the_log() -> None:
    stream = io.StringIO()
    setup_logging(LogSettings(level="debug"), "router", stream)
    logging.getLogger("botocore.auth").debug("CanonicalRequest: x-amz-security-token:secret")
    assert stream.getvalue() == ""
