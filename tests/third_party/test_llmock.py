"""Engines that nobody here wrote (llmock, with its faults) behind the router, and OpenAI's own client before it.

llmock also judges whoever asks it: what it says of the router as a client is part of the test.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from llmock.chaos import StreamChaos
from llmock.scenarios import Fail, SlowFirstToken, StreamFault
from llmock.testing import LLMockServer
from llmock.verdict import judge

from evenload.router.build import build
from evenload.router.fakes import serve
from evenload.settings import Settings
from tests.router.stage import until

MODEL = "gpt-4o"
CHATS = 40
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def mocks() -> Iterator[list[LLMockServer]]:
    with LLMockServer() as a, LLMockServer() as b:
        yield [a, b]


@contextlib.asynccontextmanager
async def client_of(mocks: list[LLMockServer], **timeouts: float) -> AsyncIterator[openai.AsyncOpenAI]:
    """Serve a router with these timeouts before the mocks; ends with the check that nothing is in flight."""
    instances = [{"url": mock.url, "kind": "none"} for mock in mocks]
    router = build(
        Settings.model_validate(
            {
                "kafka": {"bootstrap": "127.0.0.1:1"},
                "router": {"seed": 1},
                "pools": [{"name": "p", "models": [MODEL], "instances": instances, "timeouts": timeouts}],
            }
        ),
        {},
    )
    async with (
        serve(router.asgi) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client
        await until(lambda: router.dispatcher.book.in_flight == 0)
    for upstream in router.dispatcher.upstreams.values():
        upstream.close()


async def chat(client: openai.AsyncOpenAI, user: str = "u") -> str:
    """Read one stream to its end; raises what the client raises."""
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, user=user)
    text, finished = "", False
    async for event in stream:
        for choice in event.choices:
            text += choice.delta.content or ""
            finished = finished or choice.finish_reason is not None
    assert finished, "the client was given a stream without a finish reason, and raised nothing"
    return text


def retry_after_s(error: openai.APIError) -> float:
    return float(error.response.headers.get("retry-after", 0)) if isinstance(error, openai.APIStatusError) else 0.0


def asked(mocks: list[LLMockServer]) -> int:
    return sum(len(list(mock.state.journal.records())) for mock in mocks)


@pytest.mark.parametrize(
    "fault",
    [
        Fail(429, retry_after=1),
        Fail(500),
        Fail(503),
        StreamFault("disconnect", after_chunks=0),
        StreamFault("truncate", after_chunks=1),  # the role only
    ],
    ids=repr,
)
async def test_a_fault_before_content_costs_the_client_nothing(mocks: list[LLMockServer], fault: Any) -> None:
    async with client_of(mocks) as client:
        mocks[0].state.scenarios.add(fault)
        texts = [await chat(client) for _ in range(4)]
    assert all(texts)
    assert asked(mocks) == 5, "the fault was not met"


async def test_a_first_token_that_is_late_is_awaited_elsewhere(mocks: list[LLMockServer]) -> None:
    mocks[0].state.scenarios.add(SlowFirstToken(30.0))
    async with client_of(mocks, first_token_s=2.0) as client:
        texts = [await chat(client) for _ in range(4)]
    assert all(texts)


@pytest.mark.parametrize("kind", ["disconnect", "truncate", "stall"])
async def test_a_fault_after_content_is_an_error_for_the_client_and_nothing_is_asked_twice(
    mocks: list[LLMockServer], kind: Any
) -> None:
    for mock in mocks:
        mock.state.scenarios.add(StreamFault(kind, after_chunks=3))
    async with client_of(mocks, idle_s=0.5) as client:
        with pytest.raises(openai.APIError):
            await chat(client)
    assert asked(mocks) == 1


async def test_under_random_faults_the_client_sees_answers_or_errors_and_the_router_is_a_good_client(
    mocks: list[LLMockServer],
) -> None:
    for mock in mocks:
        mock.state.chaos.error_rates = {429: 0.03, 500: 0.12, 503: 0.12}
        mock.state.stream_chaos = StreamChaos(fault_rates=(("disconnect", 0.1), ("truncate", 0.1)))
    answers = errors = 0
    async with client_of(mocks) as client:
        for number in range(CHATS):
            try:
                answers += bool(await chat(client, user=f"user-{number}"))
            except openai.APIError as error:
                errors += 1
                # Both mocks may be over their quota at once: then no chat is answered before the second they ask for.
                await asyncio.sleep(retry_after_s(error))
    assert answers + errors == CHATS
    assert answers > CHATS / 2
    for mock in mocks:
        # That an answer was cut after content is passed on as an error, which the engine cannot see.
        found = {finding.code for finding in judge(mock.state.journal.records()).errors}
        assert found <= {"truncated_stream_accepted"}
