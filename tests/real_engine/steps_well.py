"""Steps with engines that are well: readiness, official clients, another's load tool, what the detour costs."""

import asyncio
import shutil
import statistics
from typing import Any

import anthropic
import openai

from tests.third_party.__main__ import aiperf_streams

from .chat import CHAT, ask, client, question
from .engine import MODEL
from .install import CONTEXT_TOKENS
from .world import Check, World, said

PAIRS = 60
ADDED_MS_MAX = 10.0
AIPERF_REQUESTS = 100
TOKENS = 40


async def ready(world: World) -> list[Check]:
    """Both are found, known and in use."""
    checks = []
    for engine in (world.roomy, world.tight):
        took_s = await world.usable(engine, 30)
        state = world.front.of(engine)
        checks.append(
            Check(
                f"{engine.name} is ready and says its queue and KV cache",
                f"in use after {said(took_s)}; waiting {state['waiting']}, KV {state['kv_usage']}; {state['why']}",
                took_s is not None and state["waiting"] is not None and state["kv_usage"] is not None,
            )
        )
        await world.page(engine, f"idle-{engine.name}")
    kinds = world.front.samples("collector", "evenload_collector_engine_info")
    found = sorted(name.partition('kind="')[2].partition('"')[0] for name, value in kinds.items() if value)
    checks.append(Check("both are recognised as vLLM", ", ".join(found), found == ["vllm", "vllm"]))
    return checks


async def clients(world: World) -> list[Check]:
    """The official clients, streaming and not."""
    checks: list[Check] = []
    async with openai.AsyncOpenAI(base_url=f"{world.front.url}/v1", api_key="k", max_retries=0) as asker:
        models = [each.id async for each in asker.models.list()]
        checks.append(Check("openai lists the model once", ", ".join(models), models == [MODEL]))
        checks += [await _plain(asker), await _streamed(asker), await _completion(asker), await _response(asker)]
        checks += [await _too_long(asker), await _unknown(asker)]
    async with anthropic.AsyncAnthropic(base_url=world.front.url, api_key="k", max_retries=0) as other:
        checks.append(await _message(other))
    async with client() as raw:
        url, usage = world.roomy.url, {"include_usage": True}
        world.record.answer("chat-stream", await ask(raw, url, question(tokens=TOKENS, stream_options=usage)))
        world.record.answer("chat-plain", await ask(raw, url, question(tokens=TOKENS, stream=False)))
        world.record.answer("too-long", await ask(raw, url, question(tokens=CONTEXT_TOKENS + 1)))
    return checks


async def _plain(asker: openai.AsyncOpenAI) -> Check:
    answer = await asker.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=TOKENS, extra_body={"ignore_eos": True}
    )
    tokens = answer.usage.completion_tokens if answer.usage else None
    text = answer.choices[0].message.content or ""
    return Check(f"openai: a chat of {TOKENS} tokens", f"{tokens} tokens, {len(text)} characters", tokens == TOKENS)


async def _streamed(asker: openai.AsyncOpenAI) -> Check:
    stream = await asker.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks, reasons, tokens = 0, [], None
    async for event in stream:
        chunks += sum(bool(choice.delta.content) for choice in event.choices)
        reasons += [choice.finish_reason for choice in event.choices if choice.finish_reason]
        tokens = event.usage.completion_tokens if event.usage else tokens
    seen = f"{chunks} pieces, finish reasons {reasons}, usage {tokens}"
    return Check(
        "openai: the same as a stream, with usage at the end", seen, reasons == ["length"] and tokens == TOKENS
    )


async def _completion(asker: openai.AsyncOpenAI) -> Check:
    stream = await asker.completions.create(
        model=MODEL, prompt="Once", max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}
    )
    reasons = [choice.finish_reason async for event in stream for choice in event.choices if choice.finish_reason]
    return Check("openai: a streamed completion", f"finish reasons {reasons}", reasons == ["length"])


async def _response(asker: openai.AsyncOpenAI) -> Check:
    stream = await asker.responses.create(model=MODEL, input="Hello", max_output_tokens=TOKENS, stream=True)
    types = [event.type async for event in stream]
    last = types[-1] if types else "nothing"
    seen = f"{len(types)} events, the last is {last}"
    return Check("openai: a streamed response", seen, last in ("response.completed", "response.incomplete"))


async def _too_long(asker: openai.AsyncOpenAI) -> Check:
    expected = "openai: more tokens than the context is the engine's own 400"
    try:
        await asker.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=CONTEXT_TOKENS + 1
        )
    except openai.BadRequestError as error:
        return Check(expected, f"400: {str(error.body)[:120]}", "max_tokens" in str(error.body))
    return Check(expected, "no error", False)


async def _unknown(asker: openai.AsyncOpenAI) -> Check:
    try:
        await asker.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "Hello"}])
    except openai.NotFoundError as error:
        return Check("openai: an unknown model is a 404", f"404: {str(error.body)[:120]}", True)
    return Check("openai: an unknown model is a 404", "no error", False)


async def _message(asker: anthropic.AsyncAnthropic) -> Check:
    async with asker.messages.stream(
        model=MODEL, max_tokens=TOKENS, messages=[{"role": "user", "content": "Hello"}]
    ) as stream:
        message = await stream.get_final_message()
    seen = f"{message.usage.output_tokens} tokens, stop reason {message.stop_reason}"
    return Check("anthropic: a streamed message", seen, message.stop_reason in ("max_tokens", "end_turn"))


async def detour(world: World) -> list[Check]:
    """What the router adds, asked alternately with and without it: to one token, and to an answer without the model."""
    return [
        await _detour(world, "one token", question(tokens=1, stream=False), CHAT, None),
        await _detour(world, "tokenize", {"model": MODEL, "prompt": "Hello"}, "/tokenize", ADDED_MS_MAX),
    ]


async def _detour(world: World, what: str, body: dict[str, Any], path: str, most_ms: float | None) -> Check:
    direct: list[float] = []
    routed: list[float] = []
    async with client() as asker:
        for number in range(2 * PAIRS):
            engine = (world.roomy, world.tight)[number // 2 % 2]
            url, times = ((engine.url, direct), (world.front.url, routed))[number % 2]
            answer = await ask(asker, url, body, path)
            assert answer.status == 200, f"{url} answered {answer.status} {answer.body[:200]!r}"
            times.append(answer.seconds * 1000)
    with_ms, without_ms = statistics.median(routed), statistics.median(direct)
    seen = f"p50 {without_ms:.1f} ms direct, {with_ms:.1f} ms through the router: {with_ms - without_ms:+.1f} ms"
    if most_ms is None:
        return Check(f"{what}, {PAIRS} times each", seen, None)
    return Check(f"{what}, {PAIRS} times each: at most {most_ms:g} ms more", seen, with_ms - without_ms <= most_ms)


async def tool(world: World) -> list[Check]:
    """Somebody else's load tool."""
    folder = world.folder / "aiperf"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    seen = await asyncio.to_thread(
        aiperf_streams, world.front.url, folder, model=MODEL, requests=AIPERF_REQUESTS, isl=64, osl=32
    )
    spread = {engine.name: world.front.attempts(engine).get("ok", 0.0) for engine in (world.roomy, world.tight)}
    total = sum(spread.values())
    shares = ", ".join(f"{name} {count / total:.0%}" for name, count in spread.items())
    return [
        Check(f"aiperf: {AIPERF_REQUESTS} streams, all good", seen, True),
        Check("both engines had part of it", shares, min(spread.values()) / total > 0.2),
    ]
