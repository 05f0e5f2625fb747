"""What faults and clients teach the router about an instance, over real sockets and with the real routing."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Cut,
    Gate,
    Stall,
    chunk,
    content,
    error,
    error_frame,
    finish,
    role,
    sse,
)
from evenload.router.fakes import FakeLease, post
from evenload.router.upstream import Upstream
from evenload.schemas import FirstToken, SnapshotBatch
from evenload.scoring import fresh, snapshot
from tests.router.stage import BUSY, GOOD, GOOD_BODY, PLAIN, STREAM, Fleet, events, fleet, replica, stage, until

ONE_ATTEMPT = {"attempts_max": 1}


def health(f: Fleet, name: str) -> tuple[Any, ...]:
    """All that a request can teach about an instance; time alone only lets the damped score rise."""
    state = f.state(name)
    return (state.errors, state.err_sum, state.saturations, state.cooling_until_ms, state.ewma_ttft_ms, state.ready)


async def test_in_flight_lasts_until_the_last_byte_and_awaiting_until_the_first_token() -> None:
    first, last = asyncio.Event(), asyncio.Event()
    script = [SSE_HEAD, chunk(role()), Gate(first), chunk(content("a")), Gate(last), chunk(finish()), END]
    async with fleet(script) as f:
        task = asyncio.create_task(post(f.url, STREAM))
        await until(lambda: f.requests("a"))
        assert (f.view("a").in_flight, f.view("a").awaiting) == (1, 1)
        first.set()
        await until(lambda: f.view("a").awaiting == 0)
        assert f.view("a").in_flight == 1
        last.set()
        await task


async def test_a_client_has_its_first_token_before_the_fleet_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: FakeLease, ttft_ms: float) -> None:
        raise RuntimeError(f"first token after {ttft_ms} ms")

    monkeypatch.setattr(FakeLease, "first_token", fail)
    caplog.set_level("CRITICAL")
    rest = content("b") + finish() + DONE
    async with stage([SSE_HEAD, chunk(role() + content("a")), Stall(0.05), chunk(rest), END]) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.body, got.whole) == (200, role() + content("a") + rest, True)
        assert s.ends == [("a", "ok", "")]
        assert s.dispatcher.leases[0].end["ttft_ms"] is not None


@pytest.mark.behind_the_server
@pytest.mark.parametrize("body", [STREAM, PLAIN], ids=["stream", "plain"])
@pytest.mark.parametrize(
    "bad",
    [*(([error(status, "no")]) for status in (400, 403, 404, 413, 422)), sse(error_frame(400, "too long"), DONE)],
    ids=["400", "403", "404", "413", "422", "400 inside a 200"],
)
async def test_a_clients_errors_say_nothing_about_the_instance(bad: Any, body: Any) -> None:
    async with fleet(bad) as f:
        before = health(f, "a")
        for _ in range(20):
            await post(f.url, body)
        assert f.requests("a") == 20
        assert health(f, "a") == before
        assert await f.outcomes("a") == {"rejected": 20}


@pytest.mark.parametrize("at", ["prefill", "decode"])
async def test_clients_that_leave_say_nothing_about_the_instance(at: str) -> None:
    script = [Stall()] if at == "prefill" else [SSE_HEAD, chunk(role() + content("x")), Stall()]
    async with fleet(script) as f:
        before = health(f, "a")
        client = Upstream(f.url)
        for number in range(10):
            task = asyncio.create_task(client.request("POST", b"/v1/chat/completions", [], json.dumps(STREAM).encode()))
            await until(lambda number=number: f.requests("a") > number)  # type: ignore[misc]
            if at == "decode":
                answer = await task
                await answer.read_chunk()
                answer.abort()
            else:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await until(lambda: f.router.dispatcher.book.in_flight == 0)
        after = health(f, "a")
        assert after[:4] == before[:4]
        assert f.state("a").successes == 0
        assert await f.outcomes("a") == {"client_gone": 10}


@pytest.mark.behind_the_server
async def test_an_instance_that_always_dies_in_the_middle_loses_score_and_traffic() -> None:
    cut = [SSE_HEAD, chunk(role() + content("x")), Stall(0.005), Cut()]
    async with fleet(cut, GOOD) as f:
        for _ in range(60):
            await post(f.url, STREAM)
        assert set(await f.outcomes("a")) == {"upstream_cut"}
        assert f.raw_score("a") < f.raw_score("b") - 20
        assert f.requests("b") > 4 * f.requests("a")


@pytest.mark.behind_the_server
async def test_an_instance_that_fails_at_once_gets_less_traffic_than_a_slow_healthy_one() -> None:
    slow = [SSE_HEAD, chunk(role()), Stall(0.3), chunk(content("x") + finish()), END]
    async with fleet([error(500, "boom")], slow, retries=ONE_ATTEMPT) as f:
        for _ in range(12):
            await asyncio.gather(*(post(f.url, STREAM) for _ in range(4)))
        assert f.requests("b") > 2 * f.requests("a")
        assert f.state("a").ewma_ttft_ms is None  # a failed answer is no sample of latency
        assert f.state("a").successes == 0


@pytest.mark.behind_the_server
@pytest.mark.parametrize("busy", [error(503, BUSY), error(429, "queue is full", ("retry-after", "1"))])
async def test_a_full_queue_is_load_and_a_single_instance_is_used_again_as_soon_as_it_answers(busy: bytes) -> None:
    async with fleet([[busy], GOOD], retries=ONE_ATTEMPT) as f:
        assert (await post(f.url, STREAM)).status in (429, 503)
        state = f.state("a")
        assert (state.err_sum, state.errors, state.saturations) == (0, 0, 1)
        assert state.cooling_until_ms > 0
        assert (await post(f.url, STREAM)).body == GOOD_BODY  # it cools, but nobody else is there


@pytest.mark.behind_the_server
async def test_traffic_returns_to_an_instance_that_was_busy_within_its_cooling() -> None:
    busy = error(429, "queue is full", ("retry-after", "1"))
    async with fleet([[busy], GOOD], GOOD) as f:
        await until_requests(f, "a", 1)
        cooled_at = asyncio.get_running_loop().time()
        await until_requests(f, "a", 5)
        assert asyncio.get_running_loop().time() - cooled_at < 1.0 + 2.0  # the cooling, and what the draws take


async def until_requests(f: Fleet, name: str, count: int) -> None:
    async with asyncio.timeout(10):
        while f.requests(name) < count:
            await asyncio.gather(*(post(f.url, STREAM) for _ in range(4)))


@pytest.mark.behind_the_server
async def test_when_every_instance_has_failed_for_long_the_first_answer_is_still_served() -> None:
    bad = [[error(500, "boom")]] * 30
    async with fleet([*bad, GOOD], [*bad, GOOD], None) as f:
        statuses = [(await post(f.url, STREAM)).status for _ in range(60)]
        assert statuses[0] == 500
        assert 200 in statuses
        healed = statuses.index(200)
        assert statuses[healed:].count(200) > 0.6 * len(statuses[healed:])
        assert 503 not in statuses


@pytest.mark.behind_the_server
@pytest.mark.parametrize(
    "refusal",
    [
        error(429, "You exceeded your current quota, please check your plan.", code="insufficient_quota"),
        error(400, "Access denied, your account is in good standing?", code="Arrearage"),
        error(402, "Insufficient Balance"),
        error(429, "Rate limit reached for requests per min"),
    ],
    ids=["openai", "dashscope as 400", "402", "rate limit"],
)
async def test_a_provider_out_of_quota_cools_for_this_account_and_is_not_faulty(refusal: bytes) -> None:
    async with fleet([refusal], GOOD) as f:
        await until_requests(f, "a", 1)
        state = f.state("a")
        assert (state.cooling_cause, state.errors, state.err_sum) == ("quota", 0, 0)
        seen = f.requests("a")
        for _ in range(20):
            assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert f.requests("a") == seen


@pytest.mark.behind_the_server
async def test_an_error_event_before_content_is_a_failure_without_a_sample_of_latency() -> None:
    bad = sse(role(), error_frame(500, "EngineCore encountered an issue."), DONE)
    async with fleet(bad, GOOD) as f:
        async with asyncio.timeout(10):
            while not f.requests("a"):
                assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert f.state("a").errors == f.requests("a")
        assert f.state("a").ewma_ttft_ms is None
        assert 'ttft_seconds_count{instance="a"' not in str(await f.metrics())


async def test_one_clean_stream_whatever_is_reset_and_nothing_twice() -> None:
    whole = b"".join(step for step in GOOD if isinstance(step, bytes))
    cuts = [[whole[:at], Stall(0.002), Cut()] for at in range(0, len(whole), 4)]
    async with stage([*cuts, GOOD], GOOD) as s:  # each cut is met: nobody learns here
        for _ in range(len(cuts) + 1):
            got = await post(s.url, STREAM)
            if b"error" in got.body or not got.whole:
                end = got.body.find(b'data: {"error"')
                assert GOOD_BODY.startswith(got.body[:end] if end >= 0 else got.body)
                assert "error" in events(got)[-1] if got.whole else not got.body.endswith(b"\n\n")
            else:
                assert got.body == GOOD_BODY


@pytest.mark.behind_the_server
async def test_once_one_replica_has_seen_it_the_others_respect_a_cooling_instance() -> None:
    busy = error(429, "queue is full", ("retry-after", "30"))
    async with fleet([busy], GOOD) as one, replica(one.settings, one.engines) as other:
        await until_requests(one, "a", 1)
        view = one.view("a")
        now_ms = view.state.log_ms
        told = snapshot(view.state, now_ms, view.config)
        (partition,) = other.router.dispatcher.view.offsets(("a",))
        batch = SnapshotBatch(
            v=1, partition=partition, as_of=1, now_ms=now_ms, linger_ms=20, sequences={}, snapshots=[told]
        )
        other.router.dispatcher.take_snapshots(0, batch)
        seen = one.requests("a")
        for _ in range(40):
            assert (await post(other.url, STREAM)).body == GOOD_BODY
        assert one.requests("a") == seen


async def test_an_instance_that_hangs_delays_only_what_it_holds() -> None:
    """F46: connections and limits are per instance, so requests to the others do not wait behind it."""
    async with fleet([Stall()], GOOD, timeouts={"first_token_s": 60}) as f:
        asked = [asyncio.create_task(post(f.url, STREAM)) for _ in range(40)]
        try:
            await until(lambda: f.requests("a") and sum(t.done() for t in asked) + f.view("a").in_flight == len(asked))
            answered = [task.result().body for task in asked if task.done()]
            assert answered == [GOOD_BODY] * len(answered)
            assert len(answered) > len(asked) / 2
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


async def test_what_is_told_is_folded_before_anybody_chooses_and_under_load_now_and_then() -> None:
    async with fleet(GOOD) as f:
        dispatcher, now_ms = f.router.dispatcher, [10_000_000.0]
        dispatcher.clock = lambda: now_ms[0]
        waiting = dispatcher.view._entries["a"]
        for later_ms, unfolded in ((10.0, 0), (0.5, 1), (0.5, 2), (10.0, 0), (0.5, 1)):
            now_ms[0] += later_ms
            dispatcher.tell(FirstToken(instance="a", ttft_ms=100.0))
            assert waiting.unfolded == unfolded
        state = f.state("a")
        dispatcher.tell(FirstToken(instance="a", ttft_ms=100.0))
        word = snapshot(fresh("a", state.log_ms, waiting.config), state.log_ms, waiting.config)
        record = SnapshotBatch(
            v=1,
            partition=waiting.partition,
            as_of=0,
            now_ms=state.log_ms,
            linger_ms=20,
            sequences={},
            snapshots=[word],
        )
        dispatcher.take_snapshots(0, record)
        assert (len(waiting.tail), waiting.unfolded) == (6, 0)


async def test_a_stream_that_comes_in_one_piece_has_its_first_token_told_too() -> None:
    whole = b"".join(step for step in GOOD if isinstance(step, bytes))
    async with fleet([whole]) as f:
        await post(f.url, STREAM)
        assert (f.state("a").first_tokens, f.state("a").successes) == (1, 1)


async def test_the_metrics_of_times_are_in_seconds() -> None:
    async with fleet([SSE_HEAD, chunk(role()), Stall(0.1), *GOOD[2:]]) as f:
        await post(f.url, STREAM)
        seen = await f.metrics()
        for name in ("ttft", "attempt"):
            assert 0.1 <= seen[f'evenload_router_{name}_seconds_sum{{instance="a",pool="p"}}'] < 10
