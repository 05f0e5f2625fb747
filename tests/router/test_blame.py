"""Whose fault a provider's refusal is: the credential's, the settings', the content's, or the client's."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.classify import Own, classify
from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Stall,
    answer,
    chunk,
    content,
    error,
    frame,
    response,
    role,
    sse,
)
from evenload.router.fakes import ScriptedUpstream, post
from evenload.router.lingering import LINGER_MS_MAX, PLACES_MAX, Lingering
from evenload.routing import LeaseBook
from tests.router.stage import PLAIN, STREAM, events, replica, until
from tests.router.test_providers import SECRET, at, settings_of

AWS = "x-amzn-errortype"
# As AWS' own signature error quotes what was signed.
CANONICAL = (
    "The request signature we calculated does not match. The Canonical String should have been\n"
    "'POST\nhost:bedrock-runtime.us-west-2.amazonaws.com\nx-amz-security-token:SESSIONTOKEN'"
)
ENVIRON = {"OPENAI_API_KEY": SECRET, "DASHSCOPE_API_KEY": SECRET, "AWS_BEARER_TOKEN_BEDROCK": SECRET}
ENVIRON["AZURE_OPENAI_API_KEY"] = ENVIRON["HUNYUAN_API_KEY"] = SECRET
ASKS = {"stream": {**STREAM, "model": "chat-large"}, "plain": {**PLAIN, "model": "chat-large"}}
WELL: dict[str, Any] = {"stream": answer("Hi"), "plain": [response(200, b'{"choices":[]}')]}


def aws(kind: str, message: str, status: int = 403) -> bytes:
    return response(status, json.dumps({"message": message}).encode(), (AWS, f"{kind}:http://internal/"))


CREDENTIALS = [
    *(
        aws(kind, CANONICAL)
        for kind in (
            "ExpiredTokenException",
            "ExpiredToken",
            "UnrecognizedClientException",
            "InvalidSignatureException",
            "SignatureDoesNotMatch",
            "MissingAuthenticationToken",
            "IncompleteSignature",
            "InvalidClientTokenId",
            "AccessDeniedException",
            "AccessDenied",
        )
    ),
    aws("IncompleteSignature", CANONICAL, 400),
    response(403, b'{"Message":"Authentication failed: Please make sure your API Key is valid. SESSIONTOKEN"}'),
    error(403, "SESSIONTOKEN", code="invalid_api_key"),
    error(403, "SESSIONTOKEN", code="insufficient_permissions"),
    error(403, "Access denied due to Virtual Network/Firewall rules of SESSIONTOKEN"),
]
MODELS = [
    error(404, "The model `theirs` does not exist or you do not have access to it.", code="model_not_found"),
    error(404, "The API deployment for this resource does not exist: theirs", code="DeploymentNotFound"),
    error(404, "theirs", code="ModelNotOpen"),
    error(404, "The model `theirs` does not exist."),
    aws("ValidationException", "The provided model identifier is invalid. theirs", 400),
    aws("ResourceNotFoundException", "Could not resolve theirs", 404),
]


@pytest.mark.parametrize(
    ("refusal", "cause"),
    [*((one, "unauthorized") for one in CREDENTIALS), *((one, "model_not_found") for one in MODELS)],
)
async def test_what_the_operator_has_to_mend_is_asked_for_elsewhere_and_its_words_stay_inside(
    refusal: bytes, cause: str
) -> None:
    async with ScriptedUpstream([refusal]) as bad, ScriptedUpstream(WELL["plain"]) as good:
        broken = at(bad, "bedrock", model_names={"chat-large": "theirs"})
        settings = settings_of(broken, at(good, "openai", priority=1), retries={"attempts_max": 2})
        async with replica(settings, {"bedrock": bad, "openai": good}, ENVIRON) as f:
            assert (await post(f.url, ASKS["plain"])).status == 200
            assert (f.state("bedrock").errors, f.state("bedrock").cause) == (1, cause)
        async with replica(settings_of(broken, retries={"attempts_max": 1}), {"bedrock": bad}, ENVIRON) as f:
            got = await post(f.url, ASKS["plain"])
            assert (got.status, got.error["code"]) == (502, f"upstream_{cause}")
            assert b"SESSIONTOKEN" not in got.body
            assert b"theirs" not in got.body


@pytest.mark.behind_the_server
async def test_a_provider_that_refuses_the_routers_key_at_once_does_not_draw_the_pool() -> None:
    bad = [aws("ExpiredTokenException", "The security token included in the request is expired")]
    slow = [Stall(0.03), *answer("Hi")]
    async with ScriptedUpstream(bad) as broken, ScriptedUpstream(slow) as good:
        settings = settings_of(at(broken, "bedrock"), at(good, "openai"))
        async with replica(settings, {"bedrock": broken, "openai": good}, ENVIRON) as f:
            got = await asyncio.gather(*(_later(f.url, 0.01 * number) for number in range(150)))
            assert set(got) == {200}
            assert f.requests("bedrock") < 150 / 4


async def _later(url: str, wait_s: float) -> int:
    await asyncio.sleep(wait_s)
    return (await post(url, ASKS["stream"])).status


@pytest.mark.parametrize(
    ("pool", "status", "kind"),
    [
        (error(404, "No response with this id.", code="not_found"), 404, "rejected"),
        (error(400, "the model has no such parameter", code="unsupported_parameter"), 400, "rejected"),
        (error(404, "The model is no chat model.", code="unsupported"), 404, "rejected"),
    ],
)
async def test_a_clients_own_bad_request_stays_the_clients(pool: bytes, status: int, kind: str) -> None:
    async with ScriptedUpstream([pool]) as engine, ScriptedUpstream(WELL["plain"]) as other:
        settings = settings_of(
            at(engine, "openai", model_names={"*": "theirs"}),
            at(other, "qwen", priority=1),
            retries={"attempts_max": 2},
        )
        async with replica(settings, {"openai": engine, "qwen": other}, ENVIRON) as f:
            got = await post(f.url, ASKS["plain"])
            assert (got.status, f.state("openai").errors, f.requests("qwen")) == (status, 0, 0)
            assert (await f.outcomes("openai"))[kind] == 1


@pytest.mark.parametrize(
    "refusal",
    [MODELS[0], MODELS[3], error(403, "No.", code="AccessDenied"), error(403, "No.", code="permission_denied")],
)
async def test_a_model_that_only_the_client_has_named_blames_nobody(refusal: bytes) -> None:
    async with ScriptedUpstream([refusal]) as engine:
        settings = settings_of(at(engine, "openai"), models=["*"])
        async with replica(settings, {"openai": engine}, ENVIRON) as f:
            got = await post(f.url, {**PLAIN, "model": "anything"})
            assert got.status in (403, 404)
            assert f.state("openai").errors == 0


def test_no_echo_of_a_client_makes_a_fault_of_the_operators() -> None:
    own = Own(key=True, model=True)
    for status in (400, 403, 404):
        for words in ("ExpiredToken", "invalid_api_key: incorrect api key", "The model `x` does not exist"):
            echo = json.dumps({"error": {"message": f"Bad input: '{words}'", "code": "bad", "type": "invalid"}})
            assert classify(status, [], echo.encode(), provider="bedrock", own=own).kind == "rejected"


# A client's errors are nobody's fault, and no reason to prefer who gives them.


@pytest.mark.behind_the_server
async def test_a_provider_that_refuses_at_once_what_others_answer_gets_no_more_than_its_share() -> None:
    slow = [Stall(0.05), *answer("Hi")]
    async with ScriptedUpstream(slow, [error(400, "no")]) as refusing, ScriptedUpstream(slow) as good:
        settings = settings_of(at(refusing, "qwen"), at(good, "openai"))
        async with replica(settings, {"qwen": refusing, "openai": good}, ENVIRON) as f:
            got = await asyncio.gather(*(_later(f.url, 0.01 * number) for number in range(200)))
            assert set(got) == {200, 400}
            assert f.requests("qwen") < 200 * 0.6
            assert f.state("qwen").errors == 0
            await until(lambda: f.router.dispatcher.book.in_flight == 0)
            assert len(f.router.dispatcher.lingering) == 0


def test_places_linger_no_longer_than_answers_take_and_not_without_bound() -> None:
    book, lingering = LeaseBook(), Lingering()
    for rest_ms in (0.0, -1.0, 100.0, 1e9):
        lingering.keep(book.book("a", 5, 0.0), 0.0, rest_ms)
    assert (book.in_flight, book.counts("a").awaiting) == (2, 0), "nobody waits for a first token"
    lingering.release(100.0)
    assert book.in_flight == 1
    lingering.release(LINGER_MS_MAX)
    assert book.in_flight == 0
    for _ in range(PLACES_MAX + 5):
        lingering.keep(book.book("a", 5, 0.0), 0.0, 1.0)
    assert book.in_flight == len(lingering) == PLACES_MAX


# Content that a provider's inspection refuses.

INSPECTIONS: list[dict[str, Any]] = [
    {"code": "data_inspection_failed", "type": "data_inspection_failed"},
    {"code": "DataInspectionFailed"},
    {"code": "content_filter", "type": None},
    {"code": "content_policy_violation", "type": "invalid_request_error"},
    {"code": "ResponsibleAIPolicyViolation"},
    {"code": "InputTextSensitiveContentDetected", "type": "BadRequest"},
    {"code": "data_inspection_failed", "type": "server_error", "status": 500},
]


def inspected(kind: dict[str, Any]) -> bytes:
    return json.dumps({"error": {"message": "Input data may contain inappropriate content.", **kind}}).encode()


@pytest.mark.parametrize("kind", INSPECTIONS, ids=lambda kind: kind["code"])
@pytest.mark.parametrize("where", ["first event", "plain", "status"])
async def test_what_an_inspection_refuses_is_a_400_not_asked_again_and_nobodys_fault(
    where: str, kind: dict[str, Any]
) -> None:
    body = inspected(kind)
    refusal: Any = {
        "first event": sse(b"data: " + body + b"\n\n", DONE),
        "plain": [response(200, body)],
        "status": [response(500, body)],
    }[where]
    async with ScriptedUpstream(refusal) as engine, ScriptedUpstream(answer("Hi")) as other:
        settings = settings_of(at(engine, "qwen"), at(other, "openai", priority=1))
        async with replica(settings, {"qwen": engine, "openai": other}, ENVIRON) as f:
            for _ in range(4):
                got = await post(f.url, ASKS["stream" if where == "first event" else "plain"])
                assert (got.status, got.body) == (400, body)
            assert (f.requests("qwen"), f.requests("openai")) == (4, 0)
            assert (f.state("qwen").errors, f.state("qwen").cooling_until_ms) == (0, 0)
            assert await f.outcomes("qwen") == {"rejected": 4}


async def test_what_an_inspection_stops_after_content_passes_and_blames_nobody() -> None:
    told = b"data: " + inspected(INSPECTIONS[0]) + b"\n\n"
    script: Any = [SSE_HEAD, chunk(role() + content("a")), Stall(0.02), chunk(told), END]
    async with (
        ScriptedUpstream(script) as engine,
        replica(settings_of(at(engine, "qwen")), {"qwen": engine}, ENVIRON) as f,
    ):
        got = await post(f.url, ASKS["stream"])
        assert got.body == role() + content("a") + told
        assert (f.state("qwen").errors, await f.outcomes("qwen")) == (0, {"rejected": 1})


# Tencent Cloud's errors have a 200.


@pytest.mark.parametrize("ask", ["stream", "plain"])
async def test_tencents_error_inside_a_200_is_one(ask: str) -> None:
    told = b'{"Response":{"Error":{"Code":"LimitExceeded","Message":"Too many"},"RequestId":"r"}}'
    scripts: Any = ([response(200, told)], sse(b"data: " + told + b"\n\n"))
    for script in scripts:
        async with ScriptedUpstream(script) as engine, ScriptedUpstream(WELL[ask]) as other:
            settings = settings_of(at(engine, "hunyuan"), at(other, "openai", priority=1))
            async with replica(settings, {"hunyuan": engine, "openai": other}, ENVIRON) as f:
                got = await post(f.url, ASKS[ask])
                assert (got.status, b"LimitExceeded" in got.body) == (200, False)
                assert (f.state("hunyuan").cooling_cause, f.requests("openai")) == ("quota", 1)


# Words that stay inside, in a stream.


async def test_a_refused_key_or_a_403_told_as_a_first_event_stays_inside() -> None:
    for code, status, told in (("invalid_api_key", 502, "upstream_unauthorized"), (403, 403, "upstream_rejected")):
        event = frame({"error": {"message": "key sk-very of acme", "type": "x", "code": code}})
        async with ScriptedUpstream(sse(event, DONE)) as engine:
            settings = settings_of(at(engine, "openai"), retries={"attempts_max": 1})
            async with replica(settings, {"openai": engine}, ENVIRON) as f:
                got = await post(f.url, ASKS["stream"])
                assert (got.status, got.error["code"]) == (status, told)
                assert b"acme" not in got.body
                assert not events(got)
