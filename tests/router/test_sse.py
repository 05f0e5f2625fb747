"""What the observer sees does not depend on how the bytes were split, and only content is content."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.router import fake_protocols as wire
from evenload.router.fake_wire import DONE, content, delta, error_frame, finish, frame, role, usage
from evenload.router.sse import FRAME_BYTES_MAX, SseObserver, error_payload
from evenload.router.sse_chat import ChatObserver
from evenload.router.sse_media import MediaObserver
from evenload.router.sse_messages import MessagesObserver
from evenload.router.sse_responses import ResponsesObserver

CAPTURES = Path(__file__).parents[3] / "shared" / "captures"
CAPTURED = {
    str(path.relative_to(CAPTURES)): path.read_bytes()
    for path in sorted(CAPTURES.glob("*/*.body"))
    if b"data:" in path.read_bytes()
}
OWN = {
    "usual": role() + content("Hi") + content(" there") + finish() + usage(9, 2) + DONE,
    "busy": error_frame(503, "The engine is currently busy and cannot accept new requests.") + DONE,
    "role then error": role() + error_frame(500, "EngineCore encountered an issue.") + DONE,
    "comments": b": ping\n\n:\n\nretry: 5\n\nid: 1\n\n" + role() + content("x") + b"\n\n\n" + finish("length"),
    "event error": b'event: error\ndata: {"message": "no"}\n\n',
    "two data lines": b'data: {"choices":[{"delta":\ndata: {"content":"x"},"finish_reason":"stop"}]}\n\n',
    "no last blank line": role() + content("x") + finish()[:-1],
    "not json": b"data: oops\n\n" + content("x"),
    "not utf-8": b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n' + finish(),
    "text about errors": content('"error": "no", finish_reason: stop [DONE]') + finish(),
}
OWN |= {
    "message": wire.message_start() + wire.message_text("x") + wire.message_end(3),
    "message with an error": wire.message_start() + wire.message_error("overloaded_error", "no"),
    "response": wire.response_start() + wire.response_text("x") + wire.response_end("x", 3),
    "response that failed": wire.response_start() + wire.response_failed("server_error", "no"),
}
STREAMS = CAPTURED | OWN


def observe(data: bytes, *cuts: int, of: type[SseObserver] = ChatObserver) -> SseObserver:
    observer = of()
    edges = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        observer.feed(data[start:end])
    observer.close()
    return observer


def facts(observer: SseObserver) -> dict[str, Any]:
    names = [name for name in SseObserver.__slots__ if not name.startswith("_")]
    return {name: getattr(observer, name) for name in [*names, "finished"]}


PROTOCOLS = (ChatObserver, MessagesObserver, ResponsesObserver, MediaObserver)
each_protocol = pytest.mark.parametrize("of", PROTOCOLS)


@each_protocol
@pytest.mark.parametrize("name", STREAMS)
def test_feeding_byte_by_byte_sees_the_same_as_feeding_at_once(name: str, of: type[SseObserver]) -> None:
    data = STREAMS[name]
    assert facts(observe(data, *range(len(data)), of=of)) == facts(observe(data, of=of))


@each_protocol
@pytest.mark.parametrize("name", OWN)
def test_one_cut_anywhere_changes_nothing_also_where_a_whole_line_is_on_each_side(
    name: str, of: type[SseObserver]
) -> None:
    data = OWN[name]
    whole = facts(observe(data, of=of))
    assert [cut for cut in range(len(data)) if facts(observe(data, cut, of=of)) != whole] == []


@settings(max_examples=200, deadline=None)
@given(
    st.data(), st.sampled_from(sorted(STREAMS)), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.sampled_from(PROTOCOLS)
)
def test_any_splitting_and_any_line_ends_give_the_same_observations(
    draw: Any, name: str, line_end: bytes, of: type[SseObserver]
) -> None:
    data = STREAMS[name].replace(b"\n", line_end)
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=20))
    assert facts(observe(data, *cuts, of=of)) == facts(observe(STREAMS[name], of=of))


ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\r\n\n", b"\n\r\n", b"\n\r", b"\r\r\n")  # two line ends each
NAMED = {MessagesObserver: wire.message_text, ResponsesObserver: wire.response_text, ChatObserver: content}


@pytest.mark.parametrize("of", NAMED)
def test_line_ends_may_change_within_one_read(of: type[SseObserver]) -> None:
    frame = NAMED[of]("x").rstrip(b"\n")
    for ends in itertools.product(ENDS, repeat=3):
        assert observe(b"".join(frame + end for end in ends), of=of).content_chunks == 3, ends


def named(key: str, text: str, *, spaced: bool, escaped: bool, **others: object) -> bytes:
    """A content frame whose text is called `key`, in one of the ways in which JSON may be written."""
    choice = {"index": 0, "delta": {**others, key: text}, "finish_reason": None}
    separators = (", ", ": ") if spaced else (",", ":")
    value = {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(value, separators=separators, ensure_ascii=escaped).encode() + b"\n\n"


CONTENT_FRAMES = st.builds(
    named,
    st.sampled_from(["content", "reasoning_content", "reasoning", "refusal", "role"]),
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.sampled_from(['"content":"x', "\\", "a"])
    ),
    spaced=st.booleans(),
    escaped=st.booleans(),
)
CHANGED = st.tuples(
    st.integers(0, 400), st.sampled_from([b'"', b"\\", b"\n", b"\xff", b"x", b"}", b"", b'","error":"'])
)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(CONTENT_FRAMES, st.none() | CHANGED), max_size=12), st.booleans())
def test_frame_by_frame_sees_the_same_as_all_at_once_whatever_changes_in_a_frame(frames: Any, ends: bool) -> None:
    sent = [content("a"), content("b")]
    for one, change in frames:
        at, new = change or (0, None)
        sent.append(one if new is None else one[:at] + new + one[at + 1 :])
    if ends:
        sent += [finish(), DONE]
    data = b"".join(sent)
    assert facts(observe(data, *itertools.accumulate(map(len, sent)))) == facts(observe(data, *range(len(data))))


def test_frames_that_differ_in_their_text_only_are_counted_by_what_is_round_it() -> None:
    observer = ChatObserver()
    observer.feed(content("Hel"))
    assert observer._before == b""  # the client waits for the first
    observer.feed(content("l"))
    assert content("TEXT") == observer._before + b"TEXT" + observer._after
    for text in ("o", " world", "你好", 'a "quoted" one', "!"):
        observer.feed(content("TEXT").replace(b'"TEXT"', json.dumps(text, ensure_ascii=False).encode()))
    observer.feed(content(""))
    assert (observer.content_chunks, observer.malformed_frames) == (7, 0)


def test_such_frames_are_not_decoded_however_many_arrive_together(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = ChatObserver()
    observer.feed(content("Hel"))
    observer.feed(content("l"))
    monkeypatch.setattr(ChatObserver, "_payload", None)
    observer.feed(content("o"))
    observer.feed(content(",") + content(" world") + content("s and you"))
    assert observer.content_chunks == 6
    monkeypatch.undo()
    observer.feed(content("!") + content('"') + content("?") + finish() + DONE)
    assert (observer.content_chunks, observer.malformed_frames, observer.finished) == (9, 0, True)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_no_bytes_raise(data: bytes, cuts: list[int]) -> None:
    assert facts(observe(data, *(cut for cut in cuts if cut <= len(data)))) == facts(observe(data))


@pytest.mark.parametrize(
    ("name", "finished", "done", "tokens", "error"),
    [
        ("vllm-0.32.0-cpu/chat_sse_plain.body", True, True, None, None),
        ("vllm-0.32.0-cpu/chat_sse_usage.body", True, True, 12, None),
        ("vllm-0.32.0-cpu/chat_sse_continuous_usage.body", True, True, 6, None),
        ("vllm-0.32.0-cpu/chat_sse_n2_logprobs.body", True, True, None, None),
        ("vllm-0.32.0-cpu/completions_sse.body", True, True, 8, None),
        ("vllm-0.32.0-cpu/sigterm_drain10.body", True, True, None, None),
        ("vllm-0.32.0-cpu/sigterm_midstream.body", False, False, None, None),
        ("vllm-0.32.0-cpu/engine_kill.body", False, True, None, ("stream_error", "engine_dead")),
        ("vllm-0.32.0-cpu/burst_reject_stream.body", False, True, None, ("saturated", "engine_busy")),
        ("llm-d-inference-sim/chat_sse_usage.body", True, True, 1, None),
    ],
)
def test_captured_streams_are_understood(
    *, shared_dir: Path, name: str, finished: bool, done: bool, tokens: int | None, error: tuple[str, str] | None
) -> None:
    observer = observe((shared_dir / "captures" / name).read_bytes())
    assert (observer.finished, observer.done, observer.completion_tokens) == (finished, done, tokens)
    assert (error is None) == (observer.error is None)
    if observer.error is not None:
        assert (observer.error.verdict.kind, observer.error.verdict.cause) == error
    assert observer.content_started == ("burst" not in name)
    assert observer.malformed_frames == 0


@pytest.mark.parametrize(
    "data",
    [
        role(),
        delta(role="assistant"),
        delta(content=None),
        delta(tool_calls=[]),
        delta(reasoning="", reasoning_content=""),
        frame({"choices": []}),
        frame({"choices": [{"index": 0, "text": ""}]}),
        usage(3, 0),
        b": keep-alive\n\n",
        b"\n\n\n",
        b"data:\n\n",
        b"event: ping\ndata: {}\n\n",
        DONE,
    ],
)
def test_frames_without_content_do_not_stop_the_clock(data: bytes) -> None:
    assert not observe(data).content_started


@pytest.mark.parametrize(
    "data",
    [
        content("a"),
        content(" "),
        delta(role="assistant", content="at once"),
        delta(reasoning="hm"),
        delta(reasoning_content="hm"),
        delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
        delta(refusal="no"),
        delta(function_call={"name": "f"}),
        delta(audio={"data": "AAAA"}),
        frame({"choices": [{"index": 0, "text": "a"}]}),
        frame({"choices": [{"index": 0, "delta": {}, "text": "beside"}]}),
        b'data:{"choices":[{"delta":{"content":"no space"}}]}\n\n',
        b'id: 4\ndata: { "choices" : [ { "delta" : { "content" : "spaces" } } ] }\n\n',
    ],
)
def test_content_reasoning_and_tool_calls_stop_the_clock(data: bytes) -> None:
    observer = observe(data)
    assert observer.content_started
    assert observer.content_chunks == 1


@pytest.mark.parametrize(
    ("data", "kind", "code"),
    [
        (error_frame(400, "bad"), "rejected", 400),
        (error_frame(500, "boom"), "stream_error", 500),
        (frame({"error": "text only", "error_type": "overloaded"}), "saturated", None),
        (frame({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}), "rejected", 400),
        (frame({"error": {"message": "x", "code": "429"}}), "saturated", 429),
        (b"event: error\ndata: gone\n\n", "stream_error", None),
        (b"event: error\n\n", "stream_error", None),
        (b'event: error\ndata: {"message":"no"}\n\n', "stream_error", None),
        (b'event: error\ndata: {"message":"no","code":400}\n\n', "rejected", 400),
        (delta("error"), "stream_error", None),
        (delta("abort"), "stream_error", None),
    ],
)
def test_error_events_are_typed(data: bytes, kind: str, code: int | None) -> None:
    error = observe(data).error
    assert error is not None
    assert (error.verdict.kind, error.code) == (kind, code)


def choice(index: object, finish_reason: str | None = None) -> bytes:
    return frame({"choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": finish_reason}]})


@pytest.mark.parametrize(
    ("asked", "data", "finished"),
    [
        (1, choice(0) + choice(0, "stop"), True),
        (2, choice(0) + choice(1) + choice(0, "stop"), False),
        (2, choice(0) + choice(1) + choice(1, "stop"), False),
        (2, choice(0) + choice(1) + choice(1, "stop") + choice(0, "length"), True),
        (2, choice(0) + choice(0, "stop"), False),  # the other one never began
        (2, choice(0) + choice(0, "stop") + DONE, True),  # an engine that knows one choice only
        (1, choice(0) + choice(1) + choice(0, "stop") + DONE, False),  # as many as there are prompts
        (2, choice(0, "stop") + choice(0) + choice(1, "stop"), True),
        (1, choice([0]) + choice("0", "stop"), True),
        (10**9, b"".join(choice(n % 1500, "stop") for n in range(3000)), True),  # a bound, not a hang
    ],
)
def test_a_stream_is_finished_when_every_choice_is(asked: int, data: bytes, finished: bool) -> None:
    observer = ChatObserver(asked)
    observer.feed(data)
    observer.close()
    assert observer.finished is finished


@pytest.mark.parametrize("text", ["error", '{"error": {"code": 500}}', "event: error", "[DONE]", "finish_reason"])
def test_text_that_speaks_of_errors_is_text(text: str) -> None:
    observer = observe(content(text))
    assert (observer.error, observer.done, observer.finished) == (None, False, False)
    assert observer.content_chunks == 1


def test_an_error_that_is_null_is_none() -> None:
    assert observe(frame({"error": None, "choices": []})).error is None


def test_no_text_of_an_error_is_kept() -> None:
    assert "secret" not in repr(observe(error_frame(500, "a secret prompt")).error)


def test_without_usage_content_frames_are_counted() -> None:
    assert observe(content("a") * 7 + finish()).output_tokens == 7
    assert observe(content("a") * 7 + usage(1, 9)).output_tokens == 9


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_a_huge_frame_counts_as_content_and_is_not_kept(pieces: int) -> None:
    data = content("x" * (FRAME_BYTES_MAX + 10)) + finish()
    size = len(data) // pieces + 1
    observer = ChatObserver()
    for start in range(0, len(data), size):
        observer.feed(data[start : start + size])
        assert len(observer._partial) <= FRAME_BYTES_MAX + 2
    observer.close()
    assert (observer.content_chunks, observer.oversized_frames, observer.finished) == (1, 1, True)


def test_a_boundary_is_known() -> None:
    observer = ChatObserver()
    for byte in role():
        observer.feed(bytes([byte]))
    assert observer.at_boundary
    observer.feed(b"data: {")
    assert not observer.at_boundary


def test_the_payload_of_an_error_can_be_taken_out() -> None:
    assert error_payload(role() + error_frame(503, "busy") + DONE) == error_frame(503, "busy")[6:-2]
    assert error_payload(role() + DONE) is None


# Messages and responses.


@pytest.mark.parametrize(
    ("name", "of"), [("anthropic_messages_sse", MessagesObserver), ("responses_sse", ResponsesObserver)]
)
def test_captured_messages_and_responses_are_understood(shared_dir: Path, name: str, of: type[SseObserver]) -> None:
    observer = observe((shared_dir / "captures" / "vllm-0.32.0-cpu" / f"{name}.body").read_bytes(), of=of)
    assert (observer.finished, observer.error, observer.malformed_frames) == (True, None, 0)
    assert (observer.prompt_tokens, observer.completion_tokens) == (13, 8)
    assert observer.content_chunks == (8 if of is MessagesObserver else 5)


def block(**fields: object) -> bytes:
    return wire.event("content_block_start", index=0, content_block=fields)


@pytest.mark.parametrize(
    ("of", "data", "content"),
    [
        (MessagesObserver, wire.message_start(), False),
        (MessagesObserver, wire.event("ping"), False),
        (MessagesObserver, wire.message_text(""), False),
        (MessagesObserver, block(type="thinking", thinking=""), False),
        (MessagesObserver, wire.message_text("x"), True),
        (MessagesObserver, wire.event("content_block_delta", delta={"type": "thinking_delta", "thinking": "x"}), True),
        (MessagesObserver, wire.event("content_block_delta", delta={"partial_json": "{"}), True),
        (MessagesObserver, wire.event("content_block_delta", delta={"signature": "x"}), False),
        (MessagesObserver, block(type="tool_use", name="f", input={}), True),
        (ResponsesObserver, wire.response_start(), False),
        (ResponsesObserver, wire.response_text(""), False),
        (ResponsesObserver, wire.response_text("x"), True),
        (ResponsesObserver, wire.event("response.function_call_arguments.delta", delta="{"), True),
        (ResponsesObserver, wire.event("response.output_item.added", item={"type": "reasoning"}), False),
        (ResponsesObserver, wire.event("response.output_item.added", item={"type": "function_call"}), True),
    ],
)
def test_what_is_content_in_messages_and_responses(of: type[SseObserver], data: bytes, *, content: bool) -> None:
    assert observe(data, of=of).content_started is content


def test_prompt_tokens_of_a_message_include_those_of_the_cache() -> None:
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 300, "output_tokens": 1}
    start = wire.event("message_start", message={"usage": usage})
    observer = observe(start + wire.message_text("x"), of=MessagesObserver)
    assert (observer.prompt_tokens, observer.output_tokens) == (325, 1)  # the one text, not the beginning's count
    assert observe(start + wire.message_end(9), of=MessagesObserver).output_tokens == 9


@pytest.mark.parametrize(
    ("data", "kind", "of"),
    [
        (wire.message_error("overloaded_error", "Overloaded"), "saturated", MessagesObserver),
        (wire.message_error("rate_limit_error", "no"), "quota", MessagesObserver),
        (wire.message_error("not_found_error", "no"), "rejected", MessagesObserver),
        (wire.message_error("api_error", "no"), "stream_error", MessagesObserver),
        (wire.message_error("invalid_request_error", "no"), "rejected", MessagesObserver),
        (wire.event("error"), "stream_error", MessagesObserver),
        (b"event: error\ndata: gone\n\n", "stream_error", MessagesObserver),
        (wire.response_failed("server_error", "no"), "stream_error", ResponsesObserver),
        (wire.response_failed("rate_limit_exceeded", "no"), "quota", ResponsesObserver),
        (wire.response_failed("invalid_prompt", "no"), "rejected", ResponsesObserver),
        (wire.event("error", code="server_error", message="no"), "stream_error", ResponsesObserver),
        (wire.event("response.failed", response={}), "stream_error", ResponsesObserver),
    ],
)
def test_errors_of_messages_and_responses_are_typed(data: bytes, kind: str, of: type[SseObserver]) -> None:
    observer = observe(data, of=of)
    assert observer.error is not None
    assert observer.error.verdict.kind == kind
    assert not observer.finished


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_a_response_whose_last_event_is_huge_is_finished_when_that_is_over(pieces: int) -> None:
    data = wire.response_text("x") + wire.response_end("x" * (FRAME_BYTES_MAX + 10), 1)
    size = len(data) // pieces + 1
    observer = ResponsesObserver()
    for start in range(0, len(data), size):
        assert not observer.finished
        observer.feed(data[start : start + size])
    observer.close()
    assert (observer.finished, observer.oversized_frames) == (True, 1)


LONG = "x" * (FRAME_BYTES_MAX + 10)
PICTURE = {"b64_json": LONG, "background": "opaque", "usage": {"input_tokens": 1, "input_tokens_details": {}}}


def written(name: str, fields: dict[str, object], *, form: str, type_last: bool) -> bytes:
    """An event in the ways in which it may be written."""
    whole = {**fields, "type": name} if type_last else {"type": name, **fields}
    data = json.dumps(whole, separators=(",", ":") if form == "tight" else None)
    before = {"plain": f"event: {name}\ndata: ", "tight": f"event:{name}\ndata:", "data only": "data: "}[form]
    return (before + data + "\n\n").encode()


@pytest.mark.parametrize("size", [10**9, 65_536, 1000])
@pytest.mark.parametrize("type_last", [False, True])
@pytest.mark.parametrize("form", ["plain", "tight", "data only"])
@pytest.mark.parametrize(
    ("of", "name", "fields", "error"),
    [
        (ResponsesObserver, "response.completed", {"response": {"output": LONG}}, None),
        (ResponsesObserver, "response.incomplete", {"response": {"output": LONG}}, None),
        (ResponsesObserver, "response.failed", {"response": {"output": LONG}}, "stream_error"),
        (MediaObserver, "image_generation.completed", PICTURE, None),
        (MediaObserver, "image_edit.completed", PICTURE, None),
        (MediaObserver, "speech.audio.done", {"audio": LONG}, None),
    ],
)
def test_a_last_event_is_known_however_long_it_is_and_however_it_is_written(
    of: type[SseObserver],
    name: str,
    fields: dict[str, object],
    error: str | None,
    *,
    form: str,
    size: int,
    type_last: bool,
) -> None:
    data = written(name, fields, form=form, type_last=type_last)
    observer = of()
    for start in range(0, len(data), size):
        assert not observer.done
        observer.feed(data[start : start + size])
    assert (observer.done, observer.oversized_frames, observer.at_boundary) == (True, 1, True)
    assert (observer.error and observer.error.verdict.kind) == error
    assert observer.finished is (error is None)


@pytest.mark.parametrize("type_last", [False, True])
@pytest.mark.parametrize(
    ("of", "name"),
    [
        (ResponsesObserver, "response.output_item.done"),
        (ResponsesObserver, "response.in_progress"),
        (MediaObserver, "image_generation.partial_image"),
    ],
)
def test_a_long_event_in_the_middle_is_not_taken_for_the_last(
    of: type[SseObserver], name: str, *, type_last: bool
) -> None:
    told = '"type":"response.completed"\nevent: response.completed\n"type": "image_generation.completed"'
    fields: dict[str, object] = {"before": told, "item": LONG, "after": told}
    observer = observe(written(name, fields, form="plain", type_last=type_last), of=of)
    assert (observer.done, observer.finished, observer.error) == (False, False, None)


def test_a_finish_reason_in_a_huge_frame_counts_where_it_can_only_be_of_the_one_choice() -> None:
    choice = {"index": 0, "delta": {"content": LONG}, "finish_reason": "stop"}
    huge = frame({"choices": [choice]})
    for asked, finished in ((1, True), (2, False)):
        observer = ChatObserver(asked)
        observer.feed(huge)
        assert observer.finished is finished
    null = frame({"choices": [{**choice, "finish_reason": None}]})
    assert not observe(null + DONE).finished
