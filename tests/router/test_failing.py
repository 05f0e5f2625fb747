"""The log and the metrics explain an instance that fails, and say nothing of load and of what clients do wrong."""

import logging

import pytest

from evenload.bus.logs import RateLimitFilter
from evenload.router import failing
from evenload.router.fake_wire import error, error_frame, sse
from evenload.router.fakes import post
from tests.router.stage import BUSY, GOOD, PLAIN, STREAM, fleet

pytestmark = pytest.mark.behind_the_server


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """A logger of its own: the real one remembers what other tests made it say."""
    logger = logging.Logger.manager.getLogger("test_failing")
    logger.filters[:] = [RateLimitFilter()]
    monkeypatch.setattr(failing, "log", logger)
    return logger


def lines(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == log.name]


@pytest.mark.parametrize(
    ("bad", "how"),
    [
        ([error(500, "boom")], ("http_error", "http_500", 500)),
        ([error(401, "sk-secret is no key")], ("http_error", "unauthorized", 401)),
        (sse(error_frame(500, "boom")), ("stream_error", "http_500", 200)),
        (None, ("connect_error", "refused", 0)),
    ],
    ids=["500", "401", "error event", "refused"],
)
async def test_a_failing_instance_has_one_line_per_cause_that_names_a_request(
    log: logging.Logger, caplog: pytest.LogCaptureFixture, bad: object, how: tuple[str, str, int]
) -> None:
    kind, cause, status = how
    async with fleet(bad, retries={"attempts_max": 1}) as f:
        for number in range(3):
            await post(f.url, STREAM, (b"x-request-id", b"mine-%d" % number))
        assert (await f.metrics())[
            f'evenload_router_failures_total{{cause="{cause}",instance="a",outcome="{kind}",pool="p"}}'
        ] == 3
    found = lines(log, caplog)
    assert len(found) == 1, found
    assert found[0].startswith(f"a in pool p failed: {kind}, {cause}, status {status} after ")
    assert found[0].endswith("; request mine-0, attempt 0")
    assert "secret" not in caplog.text


@pytest.mark.parametrize("answer", [[error(429, "queue is full")], [error(503, BUSY)], [error(400, "no")], GOOD])
async def test_load_and_clients_faults_have_none(
    log: logging.Logger, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    async with fleet(answer) as f:
        await post(f.url, PLAIN)
    assert lines(log, caplog) == []
