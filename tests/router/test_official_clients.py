"""OpenAI's and Anthropic's own Python clients before the router parse what passes and raise their typed errors."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from evenload.router import fake_protocols as wire
from evenload.router.fake_wire import Cut, Stall, error, response, sse
from tests.router.stage import BUSY, GOOD, fleet

HELLO: Any = [{"role": "user", "content": "Hello"}]
EMBEDDINGS: dict[str, Any] = {
    "object": "list",
    "model": "tiny",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
}
EMBEDDINGS |= {"usage": {"prompt_tokens": 3, "total_tokens": 3}}
MESSAGE: dict[str, Any] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "tiny",
    "stop_reason": "end_turn",
}
MESSAGE |= {"content": [{"type": "text", "text": "Hello"}], "usage": {"input_tokens": 11, "output_tokens": 2}}
RESPONSE = json.loads(wire.response_end("Hello", 2).partition(b"data: ")[2])["response"]

LONG = ("retry-after", "20")  # so that the only instance is not asked again


def plain(value: object) -> list[Any]:
    return [response(200, json.dumps(value).encode())]


def of_openai(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def of_anthropic(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)


async def test_openai_chat_completions_and_embeddings() -> None:
    text = {"object": "text_completion", "id": "c", "created": 1, "model": "tiny"}
    text |= {"choices": [{"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": None}]}
    async with fleet([GOOD, plain(text), plain(EMBEDDINGS)]) as f, of_openai(f.url) as client:
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello"
        assert (await client.completions.create(model="tiny", prompt="Hi")).choices[0].text == "Hello"
        answer = await client.embeddings.create(model="tiny", input="Hi", encoding_format="float")
        assert answer.data[0].embedding == [0.5]


async def test_openai_responses_whole_and_as_a_stream() -> None:
    async with fleet([plain(RESPONSE), wire.responses("Hel", "lo")]) as f, of_openai(f.url) as client:
        assert (await client.responses.create(model="tiny", input="Hi")).output_text == "Hello"
        async with client.responses.stream(model="tiny", input="Hi") as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert deltas == ["Hel", "lo"]
        assert final.usage is not None
        assert (final.usage.input_tokens, final.usage.output_tokens) == (11, 2)


async def test_openai_audio_both_ways() -> None:
    speech = [response(200, b"ID3" * 1000, content_type="audio/mpeg")]
    async with fleet([plain({"text": "Hello"}), speech]) as f, of_openai(f.url) as client:
        heard = await client.audio.transcriptions.create(model="tiny", file=("a.wav", b"RIFF" * 5000))
        assert heard.text == "Hello"
        assert (await client.audio.speech.create(model="tiny", voice="alloy", input="Hi")).content == b"ID3" * 1000


async def test_openai_models() -> None:
    async with fleet(GOOD, models=("tiny", "a/b")) as f, of_openai(f.url) as client:
        assert [model.id async for model in client.models.list()] == ["a/b", "tiny"]
        assert (await client.models.retrieve("a/b")).id == "a/b"
        with pytest.raises(openai.NotFoundError) as raised:
            await client.models.retrieve("nobody")
        assert raised.value.code == "model_not_found"


async def test_openai_raises_typed_errors() -> None:
    cut = [*sse(wire.response_start(), wire.response_text("x"), end=False), Stall(0.02), Cut()]
    async with fleet([[error(503, BUSY, LONG)], cut, GOOD]) as f, of_openai(f.url) as client:
        with pytest.raises(openai.InternalServerError) as busy:
            await client.responses.create(model="tiny", input="Hi")
        assert busy.value.code == "overloaded"
        with pytest.raises(openai.APIError) as broken:
            [event async for event in await client.responses.create(model="tiny", input="Hi", stream=True)]
        assert broken.value.code == "eof"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.responses.create(model="nobody", input="Hi")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError) as stored:
            await client.responses.retrieve("resp_1")
        assert stored.value.code == "responses_not_stored"


async def test_anthropic_messages_whole_as_a_stream_and_counted() -> None:
    scripts = [plain(MESSAGE), wire.message("Hel", "lo"), plain({"input_tokens": 11})]
    async with fleet(scripts) as f, of_anthropic(f.url) as client:
        whole = await client.messages.create(model="tiny", max_tokens=5, messages=HELLO)
        assert whole.content[0].text == "Hello"  # type: ignore[union-attr]
        assert whole._request_id is not None
        async with client.messages.stream(model="tiny", max_tokens=5, messages=HELLO) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert (texts, final.usage.output_tokens) == (["Hel", "lo"], 2)
        assert (await client.messages.count_tokens(model="tiny", messages=HELLO)).input_tokens == 11
        assert [model.id async for model in client.models.list()] == ["tiny"]
        seen = f.engines["a"].requests[0]
        assert b"anthropic-version" in seen.headers
        assert b"x-api-key" not in seen.headers


async def test_anthropic_raises_typed_errors() -> None:
    cut = [*sse(wire.message_start(), wire.message_text("x"), end=False), Stall(0.02), Cut()]
    scripts = [[error(503, BUSY, LONG)], [error(429, "queue is full", LONG)], cut, GOOD]
    async with fleet(scripts) as f, of_anthropic(f.url) as client:

        async def ask(model: str = "tiny", **more: Any) -> Any:
            return await client.messages.create(model=model, max_tokens=5, messages=HELLO, **more)

        with pytest.raises(anthropic.InternalServerError) as busy:
            await ask()
        assert kind(busy.value) == ("overloaded_error", "overloaded")
        with pytest.raises(anthropic.RateLimitError) as full:
            await ask()
        assert kind(full.value) == ("rate_limit_error", "overloaded")
        with pytest.raises(anthropic.APIStatusError) as broken:
            await drain(await ask(stream=True))
        assert kind(broken.value) == ("api_error", "eof")
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await ask("nobody")
        assert kind(unknown.value) == ("not_found_error", "model_not_found")
        assert unknown.value.request_id is not None
        with pytest.raises(anthropic.NotFoundError) as batches:
            await client.messages.batches.retrieve("b")
        assert kind(batches.value) == ("not_found_error", "not_found")


async def drain(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


def kind(raised: anthropic.APIStatusError) -> tuple[str, str]:
    """Return type and code of an error, after the check of its form."""
    body: Any = raised.body
    assert (body["type"], set(body)) == ("error", {"type", "error", "request_id"})
    return body["error"]["type"], body["error"]["code"]
