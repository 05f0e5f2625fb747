"""While one instance answers, clients are answered: whatever is said of it, and whoever else fails."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.fake_wire import Stall, error
from evenload.router.fakes import post
from evenload.router.gone import LOOKS, Gone
from evenload.routing.exclusion import DOUBT_AFTER_MS, RETEST_EVERY
from evenload.schemas import Membership, SnapshotBatch
from evenload.scoring import apply, snapshot
from tests.router.stage import BUSY, GOOD, GOOD_BODY, PLAIN, STREAM, Fleet, fleet, until

OUTAGE_MS = DOUBT_AFTER_MS + 1_000
BOOM = [error(500, "boom")]
FULL = [error(429, BUSY, ("retry-after", "30"))]


def say(f: Fleet, name: str, age_ms: int = 0, cause: str = "health_503") -> None:
    """The collector says that an instance is not ready; the scorer's last word on it is so old."""
    dispatcher, view = f.router.dispatcher, f.view(name)
    clock = dispatcher.clock
    dispatcher.clock = lambda: clock() + age_ms
    now_ms = view.state.log_ms
    told = apply(view.state, Membership(instance=name, change="not_ready", cause=cause), now_ms, view.config)
    (partition,) = dispatcher.view.offsets((name,))
    dispatcher.view.take(
        0,
        SnapshotBatch(
            v=1,
            partition=partition,
            as_of=1,
            now_ms=dispatcher.log_clock.now_ms(clock()),
            linger_ms=20,
            sequences={},
            snapshots=[snapshot(told, now_ms, view.config)],
        ),
        clock(),
    )


async def excluded(f: Fleet, name: str) -> tuple[str, str]:
    page: Any = json.loads((await post(f.url, b"", path="/fleet", method="GET")).body)
    (one,) = [each for each in page["pools"][0]["instances"] if each["instance"] == name]
    return one["excluded"], one["why"]


@pytest.mark.parametrize("policy", ["predictive", "peak-ewma-decay", "health-ramp", "round-robin"])
@pytest.mark.parametrize("bad", [BOOM, None], ids=["500", "port closed"])
async def test_who_is_said_to_be_not_ready_answers_when_all_that_are_ready_fail(bad: Any, policy: str) -> None:
    async with fleet(bad, GOOD, policy=policy) as f:
        say(f, "b")
        for _ in range(20):
            assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert (await excluded(f, "b"))[0] == "not_ready"
        assert f.requests("b") == 20


async def test_who_is_not_ready_is_left_alone_while_another_one_answers_or_is_busy() -> None:
    for other in (GOOD, FULL):
        async with fleet(other, GOOD) as f:
            say(f, "b")
            for _ in range(2 * RETEST_EVERY):
                await post(f.url, STREAM)
            assert f.requests("b") == 0


@pytest.mark.parametrize("policy", ["predictive", "peak-ewma-decay"])
async def test_who_was_not_ready_when_the_scorer_died_is_re_tested_and_used_once_it_answers(policy: str) -> None:
    even = [Stall(0.05), *GOOD]
    async with fleet(even, even, policy=policy) as f:
        say(f, "b", OUTAGE_MS)
        assert (await excluded(f, "b"))[0] == "doubtful"
        for _ in range(RETEST_EVERY):
            assert f.requests("b") == 0
            assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert f.requests("b") == 1
        await until(lambda: f.state("b").ok_sum)
        reason, why = await excluded(f, "b")
        assert (reason, "it answers" in why) == ("", True)
        for _ in range(3):
            await asyncio.gather(*(post(f.url, STREAM) for _ in range(20)))
        assert f.requests("b") > 15, "re-tests alone would be two"


async def test_re_tests_of_one_that_is_still_down_cost_no_client_an_answer() -> None:
    async with fleet(GOOD, BOOM) as f:
        say(f, "b", OUTAGE_MS)
        for _ in range(4 * RETEST_EVERY):
            assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert 0 < f.requests("b") <= 4
        assert (await excluded(f, "b"))[0] == "doubtful"


async def test_one_that_hangs_holds_one_re_test_at_a_time() -> None:
    async with fleet(GOOD, [Stall()], timeouts={"first_token_s": 60}) as f:
        say(f, "b", OUTAGE_MS)
        tasks = [asyncio.create_task(post(f.url, STREAM)) for _ in range(4 * RETEST_EVERY)]
        try:
            await until(lambda: sum(task.done() for task in tasks) == len(tasks) - 1, 20.0)
            assert f.requests("b") == 1
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("age_ms", "given_up"), [(0, 1), (OUTAGE_MS, 0)])
async def test_silence_is_given_up_by_a_fresh_word_that_the_port_is_closed_only(age_ms: int, given_up: int) -> None:
    look_ms = 20.0
    async with fleet([Stall()], GOOD, timeouts={"first_token_s": 0.9}) as f:
        f.router.dispatcher.gone = Gone(look_ms)
        say(f, "b")
        task = asyncio.create_task(post(f.url, STREAM))
        await until(lambda: f.requests("a"))
        say(f, "a", age_ms, "refused")
        await asyncio.sleep(10 * LOOKS * look_ms / 1000)
        await task
        assert f.router.dispatcher.gone.given_up == given_up


@pytest.mark.parametrize("body", [STREAM, PLAIN], ids=["stream", "plain"])
@pytest.mark.parametrize("bad", [FULL, BOOM], ids=["429", "500"])
async def test_three_of_four_providers_that_refuse_or_fail_cost_clients_next_to_nothing(bad: Any, body: Any) -> None:
    async with fleet(bad, bad, bad, GOOD, policy="peak-ewma-decay") as f:
        got = [(await post(f.url, body)).status for _ in range(150)]
        assert got.count(200) >= 149, "the first one may find nobody who is known to answer"
        assert sum(f.requests(name) for name in "abc") <= 9
