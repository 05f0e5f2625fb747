"""What the router serves besides the hot endpoints: the list of models, metrics. Over real sockets."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.build import build
from evenload.router.fake_wire import Stall, error, response
from evenload.router.fakes import post, serve
from evenload.router.ports import Ask
from tests.router.stage import BUSY, GOOD, GOOD_BODY, STREAM, fleet

RANDOM_NAMES = 10_000


def models(*names: str) -> bytes:
    return response(200, json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode())


async def listed(url: str) -> list[str]:
    got = await post(url, b"", path="/v1/models", method="GET")
    return [model["id"] for model in json.loads(got.body)["data"]]


async def test_models_are_the_union_over_those_who_answer_without_duplicates_and_kept_for_a_while() -> None:
    answers = [models("m1", "m2")], [models("m2", "m3")], None, [error(500, "boom")], [response(200, b"oops")]
    async with fleet(*answers, models=("named", "*")) as f:
        assert await listed(f.url) == ["m1", "m2", "m3", "named"]
        assert await listed(f.url) == ["m1", "m2", "m3", "named"]
        assert (f.requests("a"), f.requests("b")) == (1, 1)
        assert (await post(f.url, STREAM)).status != 404  # any name is taken by the pool


async def test_an_instance_that_does_not_answer_any_more_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenload.router.models.KEEP_S", 0.0)
    async with fleet([models("m1")], [[models("m2")], [error(500, "boom")]], models=("*",)) as f:
        for _ in range(3):
            assert await listed(f.url) == ["m1", "m2"]
        assert f.requests("b") == 3


@pytest.mark.parametrize(
    "bad",
    [
        b'{"data":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"data":' + b"[" * 100_000,
        b'{"data":[{"id":"\xff"}]}',
        b'{"data":[{"id":"\\ud800"}]}',
        b'{"data":[{"id":7}]}',
    ],
    ids=["nested", "nested without end", "not UTF-8", "half a character", "no name"],
)
async def test_an_instance_whose_list_cannot_be_read_is_left_out(bad: bytes) -> None:
    async with fleet([response(200, bad)], [models("good")], models=("*",)) as f:
        assert await listed(f.url) == ["good"]


async def test_answers_about_models_carry_the_request_id() -> None:
    async with fleet([models("m1")]) as f:
        for path in ("/v1/models", "/v1/models/tiny"):
            got = await post(f.url, b"", (b"x-request-id", b"mine"), path=path, method="GET")
            assert (got.status, got.headers[b"x-request-id"]) == (200, b"mine")
            assert b"request-id" not in got.headers
            got = await post(f.url, b"", (b"anthropic-version", b"1"), path=path, method="GET")
            assert got.headers[b"request-id"] == got.headers[b"x-request-id"]


async def test_probes_may_be_asked_by_head() -> None:
    async with fleet([]) as f:
        _, _, port = f.url.rpartition(":")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        for path in (b"healthz", b"readyz"):
            writer.write(
                b"HEAD /%b HTTP/1.1\r\nhost: h\r\n%b\r\n" % (path, b"connection: close\r\n" * (path == b"readyz"))
            )
        got = await reader.read()
        writer.close()
    assert got.count(b"HTTP/1.1 ") == 2
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b"{" not in got


@pytest.mark.behind_the_server
async def test_an_instance_that_hangs_delays_the_list_of_models_by_two_seconds_at_most() -> None:
    async with fleet([models("m1")], [Stall()], models=("*",)) as f:
        assert await listed(f.url) == ["m1"]


@pytest.mark.behind_the_server
async def test_metrics_are_by_model_instance_and_outcome() -> None:
    async with fleet([error(503, BUSY)], GOOD, models=("tiny", "*")) as f:
        for model in ("tiny", "tiny", "tiny", "another", "a third"):
            await post(f.url, {**STREAM, "model": model})
        samples = await f.metrics()
        name = 'evenload_router_attempts_total{instance="%s",model="%s",outcome="%s",pool="p"}'
        assert samples[name % ("b", "tiny", "ok")] == 3
        assert samples[name % ("b", "*", "ok")] == 2
        assert any(name % ("a", model, "saturated") in samples for model in ("tiny", "*"))
        assert not any("another" in sample for sample in samples)


@pytest.mark.behind_the_server
async def test_ten_thousand_random_model_names_leave_the_number_of_series_constant() -> None:
    async def series(f: Any) -> set[str]:
        return set(await f.metrics())

    async with fleet(GOOD, models=("tiny", "*")) as f:
        for model in ("tiny", "any"):
            await post(f.url, {**STREAM, "model": model})
        before = await series(f)
        for number in range(100):
            await post(f.url, {**STREAM, "model": f"random-{number}"})
        dispatcher = f.router.dispatcher
        for number in range(100, RANDOM_NAMES):  # the rest without sockets, for the sake of time
            ask = Ask(request_id="r", model=f"random-{number}", prompt_tokens=1, stream=True, endpoint="completions")
            lease = dispatcher.choose(ask, (), 0)
            lease.first_token(1.0)
            lease.finish("ok", status=200, cause="", retry_after_ms=None, ttft_ms=1.0, duration_ms=1.0, output_tokens=1)
        assert await series(f) - before == set()


@pytest.mark.behind_the_server
async def test_unknown_models_that_no_pool_takes_make_no_series() -> None:
    async with fleet(GOOD) as f:
        await post(f.url, STREAM)
        before = set(await f.metrics())
        for number in range(100):
            assert (await post(f.url, {**STREAM, "model": f"random-{number}"})).status == 404
        assert set(await f.metrics()) == before


async def test_a_task_of_the_router_that_dies_turns_readiness_off_and_is_started_again() -> None:
    """F46: while it is down requests are served all the same."""
    async with fleet(GOOD) as f:
        router = build(f.settings, {})
        telemetry = router.telemetry
        async with serve(router.front, lifespan="on") as url:

            async def not_ready() -> list[str]:
                found: list[str] = json.loads((await post(url, b"", path="/readyz", method="GET")).body)["reasons"]
                return found

            assert await not_ready() == []
            dispatcher, telemetry._dispatcher = telemetry._dispatcher, None  # type: ignore[assignment]  # kills it
            async with asyncio.timeout(10):
                while await not_ready() != ["the ticker is not running"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (await post(url, STREAM)).body == GOOD_BODY
            telemetry._dispatcher = dispatcher
            async with asyncio.timeout(10):
                while await not_ready():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
