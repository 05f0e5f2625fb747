"""What real engines did that nobody had expected, done by simulated ones: the router must get along with it.

docs/real-engines.md says where each was seen.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from evenload.collector.poller import Poller
from evenload.collector.watch import Watch
from evenload.demo.engine_server import EngineFleet, EngineServer
from evenload.router.fakes import Got, post
from evenload.router.gone import LOOKS
from evenload.router.sse_chat import ChatObserver
from tests.router.stage import STREAM, Fleet, fleet, until

STREAMS = 16


@contextlib.asynccontextmanager
async def two(**options: object) -> AsyncIterator[tuple[EngineFleet, Fleet]]:
    """Serve a router before two simulated engines, "a" and "b"."""
    engines = EngineFleet([EngineServer(name=name, model="tiny", speed=4.0, seed=3) for name in "ab"])
    await engines.start()
    try:
        async with fleet(*(engine.url for engine in engines.engines), **options) as f:  # type: ignore[arg-type]
            yield engines, f
    finally:
        await engines.stop()


def chats(f: Fleet, count: int, *, tokens: int) -> list[asyncio.Task[Got]]:
    """Ask for so many streams at once."""
    body = {**STREAM, "max_tokens": tokens, "ignore_eos": True}
    return [asyncio.create_task(post(f.url, body)) for _ in range(count)]


def verdict(got: Got) -> str:
    """Say what a client makes of a stream: whole, told (it broke, and says so), refused, or a lie."""
    observer = ChatObserver()
    observer.feed(got.body)
    observer.close()
    if got.status != 200:
        return "refused"
    if observer.finished and observer.error is None:
        return "whole"
    return "told" if observer.error is not None and observer.content_started else "a lie"


async def test_an_engine_that_refuses_without_a_queue_costs_no_client_anything_and_is_no_failure() -> None:
    """Half of its refusals come inside a 200, as those of a burst do."""
    async with two() as (engines, f):
        limited = engines.engines[0]
        await limited.set_faults({"limit": {"requests": 2, "in_stream": 0.5}})
        got = await asyncio.gather(*chats(f, STREAMS, tokens=40))
        assert [verdict(each) for each in got] == ["whole"] * STREAMS
        outcomes = await f.outcomes("a")
        assert outcomes["saturated"] > 0
        assert outcomes.keys() <= {"saturated", "ok"}
        assert f.state("a").errors == 0
        # It is left alone for seconds, not asked again by each request.
        before = limited.life.metrics.refused
        await asyncio.gather(*chats(f, STREAMS, tokens=40))
        assert limited.life.metrics.refused - before <= 2


async def test_streams_of_a_killed_core_that_had_content_are_told_and_all_others_are_made_good() -> None:
    async with two() as (engines, f):
        victim = engines.engines[0]
        tasks = chats(f, STREAMS, tokens=400)
        await until(lambda: f.view("a").in_flight > 2 and f.view("a").awaiting == 0)
        tasks += chats(f, STREAMS, tokens=4)
        here = f.view("a").in_flight
        await victim.set_faults({"kill_core": {"exit_s": 0.2}})
        verdicts = [verdict(each) for each in await asyncio.gather(*tasks)]
        assert set(verdicts) == {"whole", "told"}
        assert 0 < verdicts.count("told") <= here
        assert [verdict(each) for each in await asyncio.gather(*chats(f, STREAMS, tokens=4))] == ["whole"] * STREAMS
        assert f.state("a").errors > 0


async def test_an_aborted_answer_that_ends_as_if_it_were_whole_counts_as_broken() -> None:
    """Finish reason `abort`, then [DONE]."""
    async with two() as (engines, f):
        for engine in engines.engines:
            await engine.set_faults({"cut": {"after_tokens": 3, "how": "abort"}})
        got = (await asyncio.gather(*chats(f, 1, tokens=40)))[0]
        assert b'"finish_reason":"abort"' in got.body
        assert got.body.endswith(b"data: [DONE]\n\n")
        assert verdict(got) == "told"
        assert f.state("a").errors + f.state("b").errors == 1
        assert f.state("a").successes + f.state("b").successes == 0


async def test_nobody_waits_long_for_an_engine_that_was_stopped_and_holds_its_connections_in_silence() -> None:
    """The pool would wait for two minutes; the collector sees at once that the port is closed."""
    async with two() as (engines, f), polled(engines, f):
        stopped = engines.engines[0]
        await until(lambda: f.state("a").ready and f.state("a").running is not None)
        tasks = chats(f, STREAMS, tokens=4000)
        await until(lambda: f.view("a").in_flight > 2 and f.view("a").awaiting == 0)
        here = f.view("a").in_flight
        await stopped.set_faults({"stop": {}})
        began_s = asyncio.get_running_loop().time()
        await until(lambda: f.view("a").in_flight == 0, LOOKS + 5.0)
        assert asyncio.get_running_loop().time() - began_s > LOOKS - 1
        assert [verdict(each) for each in await asyncio.gather(*chats(f, 4, tokens=4))] == ["whole"] * 4
        told = [task.result() for task in tasks if task.done() and verdict(task.result()) == "told"]
        assert len(told) == f.router.dispatcher.gone.given_up == here
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def polled(engines: EngineFleet, f: Fleet) -> AsyncIterator[None]:
    """Have a collector's pollers tell the router what they see, as Kafka would."""
    pollers = [Poller(Watch(engine.name, 250), engine.url, 1.0, f.router.dispatcher.tell) for engine in engines.engines]
    tasks = [asyncio.create_task(poller.run(0)) for poller in pollers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_tokens_that_are_parts_of_a_character_are_counted_by_usage_and_else_missed() -> None:
    """Of 30 tokens every third has an event without content."""
    async with two() as (engines, f):
        for engine in engines.engines:
            await engine.set_faults({"split": {"every": 3}})
        body = {**STREAM, "max_tokens": 30, "ignore_eos": True}
        got = await post(f.url, body)
        assert verdict(got) == "whole"
        deltas = [event["choices"][0]["delta"]["content"] for event in events(got) if event["choices"]]
        tokens = deltas[1:]  # the first is the role's
        assert (len(tokens), tokens.count("")) == (30, 10)
        assert counted(got) == 20
        assert counted(await post(f.url, {**body, "stream_options": {"include_usage": True}})) == 30


async def test_a_clients_request_id_becomes_the_answers_and_may_come_twice() -> None:
    async with two() as (_, f):
        ids = [
            {
                event["id"]
                for event in events(await post(f.url, {**STREAM, "max_tokens": 3}, (b"x-request-id", b"mine")))
            }
            for _ in range(4)
        ]
        assert ids == [{"chatcmpl-mine"}] * 4
        other = events(await post(f.url, {**STREAM, "max_tokens": 3}))[0]["id"]
        assert other.startswith("chatcmpl-")
        assert other != "chatcmpl-mine"


def counted(got: Got) -> int:
    observer = ChatObserver()
    observer.feed(got.body)
    return observer.output_tokens


def events(got: Got) -> list[Any]:
    frames = got.body.decode().split("\n\n")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if frame.startswith("data: {")]
