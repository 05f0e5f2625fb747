"""Multipart forms pass byte for byte, are read for routing, and are refused when they cannot be. Over real sockets."""

from typing import Any

import pytest

from evenload.router import fake_protocols as wire
from evenload.router.endpoints import ENDPOINTS
from evenload.router.fake_wire import DONE, error, finish, frame, response, sse
from evenload.router.fakes import ScriptedUpstream, post
from evenload.router.form_fields import FormError, form_fields
from evenload.router.limits import Limits
from evenload.router.shape import Shape
from evenload.settings import Settings
from tests.router.stage import BUSY, replica, stage


def form(*parts: tuple[str, bytes]) -> bytes:
    """Return a form with the boundary XX."""
    body = b"".join(
        b'--XX\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
        for name, value in parts
    )
    return body + b"--XX--\r\n"


FORM = (b"content-type", b"multipart/form-data; boundary=XX")


async def test_a_form_passes_byte_for_byte_and_its_file_says_nothing_about_tokens() -> None:
    sent = form(("file", b"\x00--X\r\n" * 100_000), ("model", b"tiny"), ("response_format", b"json"))
    answer = b'{"text":"Hello","usage":{"type":"tokens","input_tokens":11,"output_tokens":2}}'
    async with stage([error(503, BUSY)], [response(200, answer)]) as s:
        got = await post(s.url, sent, FORM, path="/v1/audio/transcriptions")
        assert (got.status, got.body) == (200, answer)
        assert [engine.requests[0].body == sent for engine in s.engines] == [True, True]
        assert s.engines[1].requests[0].headers[b"content-type"] == FORM[1]
        ask = s.dispatcher.asks[0]
        assert (ask.model, ask.prompt_tokens, ask.stream) == ("tiny", 1, False)
        assert s.dispatcher.learned == []


async def test_a_transcription_can_be_a_stream_of_named_events_or_of_chunks() -> None:
    named = wire.event("transcript.text.delta", delta="x") + wire.event("transcript.text.done", text="x")
    chunks = frame({"object": "transcription.chunk", "choices": [{"index": 0, "delta": {"content": "x"}}]})
    chunks += finish() + DONE
    sent = form(("model", b"tiny"), ("stream", b"true"))
    for body in (named, chunks):
        cut = body[: body.index(b"\n\n") + 2]
        for whole, ends in ((body, ("a", "ok", "")), (cut, ("a", "upstream_cut", "eof"))):
            async with stage(sse(whole)) as s:
                got = await post(s.url, sent, FORM, path="/v1/audio/transcriptions")
                assert s.dispatcher.asks[0].stream
                assert got.body.startswith(whole)
                assert s.ends == [ends]
                assert s.dispatcher.leases[0].first_token_ms is not None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{}", 400, "invalid_form"),
        (form(("file", b"x")), 400, "invalid_value"),
        (form(("model", b"x" * 2000)), 400, "invalid_form"),
        (form(("file", b"x" * 3000), ("model", b"tiny")), 413, "request_too_large"),
    ],
)
async def test_forms_that_cannot_be_served_are_refused(body: bytes, status: int, code: str) -> None:
    async with stage([response(200, b"{}")], limits=Limits(body_bytes_max=2900)) as s:
        got = await post(s.url, body, FORM, path="/v1/audio/translations")
        assert (got.status, got.error["code"]) == (status, code)
        assert not s.dispatcher.asks


async def test_a_form_without_its_header_is_refused() -> None:
    async with stage([response(200, b"{}")]) as s:
        got = await post(s.url, form(("model", b"tiny")), path="/v1/audio/translations")  # says it is JSON
        assert (got.status, got.error["code"]) == (400, "invalid_form")


async def test_a_forms_model_goes_upstream_by_the_instances_own_name() -> None:
    sent = form(("model", b"tiny"), ("file", b"tiny" * 1000))
    shaped = Shape(names={"tiny": "whisper-1"}).apply(b"/v1/audio/transcriptions", [FORM], sent)
    assert shaped == (b"/v1/audio/transcriptions", [FORM], form(("model", b"whisper-1"), ("file", b"tiny" * 1000)))


OTHER_NAMES = {"tiny": "theirs"}


async def renamed(path: str, body: bytes, *headers: tuple[bytes, bytes], **instance: Any) -> tuple[int, list[Any]]:
    """The status of a request to an instance with names of its own, and what it got."""
    async with ScriptedUpstream([response(200, b"{}")]) as engine:
        settings = Settings.model_validate(
            {
                "kafka": {"bootstrap": "127.0.0.1:1"},
                "pools": [
                    {"name": "p", "models": ["tiny"], "instances": [{"url": engine.url, "kind": "none", **instance}]}
                ],
            }
        )
        async with replica(settings, {"a": engine}, {"KEY": "k"}) as f:
            got = await post(f.url, body, *headers, path=path)
        return got.status, engine.requests


@pytest.mark.parametrize(
    "instance",
    [{"model_names": OTHER_NAMES}, {"preset": "azure-deployments", "api_key_env": "KEY", "model_names": OTHER_NAMES}],
    ids=["names", "deployments"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/messages"])
async def test_json_that_says_it_is_a_form_is_json(path: str, instance: dict[str, Any]) -> None:
    status, (seen,) = await renamed(path, b'{"model":"tiny"}', FORM, **instance)
    assert (status, seen.body) == (200, b'{"model":"theirs"}')
    assert (b"/deployments/theirs/" in seen.path) == ("preset" in instance)


@pytest.mark.parametrize("path", [path for path, one in ENDPOINTS.items() if one.multipart])
@pytest.mark.parametrize(
    "headers",
    [
        (FORM, (b"connection", b"content-type")),
        (FORM, (b"connection", b"Content-Type, close")),
        ((b"content-type", b"text/plain"), FORM),
        ((b"content-type", b"multipart/form-data"), FORM),
    ],
)
async def test_a_form_whose_content_type_does_not_go_upstream_is_refused(path: str, headers: Any) -> None:
    status, seen = await renamed(path, form(("model", b"tiny")), *headers, model_names=OTHER_NAMES)
    assert (status, seen) == (400, [])


async def test_the_first_content_type_counts_both_here_and_upstream() -> None:
    other = (b"content-type", b"text/plain")
    status, (seen,) = await renamed(
        "/v1/audio/translations", form(("model", b"tiny")), FORM, other, model_names=OTHER_NAMES
    )
    assert (status, seen.body) == (200, form(("model", b"theirs")))


@pytest.mark.parametrize(
    "cut", [b"--XX\r\n", b"--XX\r\ncontent-disposition: form-data\r\n\r\nx", b"x--XX--", form(*[("a", b"")] * 65)]
)
def test_broken_forms_are_told_from_whole_ones(cut: bytes) -> None:
    with pytest.raises(FormError):
        form_fields(FORM[1], cut, ("model",))


def test_only_a_fields_own_name_counts_and_the_last_of_two() -> None:
    tricky = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="; name=\\"model\\""\r\n\r\nevil\r\n'
    body = b"preamble\r\n" + tricky + form(("model", b""), ("stream", b"true"), ("model", b"m\xc3\xa9"))
    assert form_fields(FORM[1], body, ("model", "stream")) == {"model": "mé", "stream": "true"}
