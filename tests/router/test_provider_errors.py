"""How providers say no, in their own public formats, and what is made of it.

Bodies follow the error references of each provider (docs/providers.md lists them) and, where those give codes only,
errors that users of their APIs have published; ids and names are made up.
"""

import json
from typing import NamedTuple

import pytest

from evenload.router.classify import Own, classify, classify_error


class Refusal(NamedTuple):
    """One published error, and the verdict: kind and cause."""

    name: str
    provider: str
    status: int
    body: str
    kind: str
    cause: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    wait_ms: float | None = None


def openai(message: str, kind: str | None, code: str | None) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def native(code: str, message: str) -> str:
    return json.dumps({"code": code, "message": message, "request_id": "7574ee8f-38a3-4b1e-9280-11c33ab46e51"})


def ark(code: str, kind: str, message: str) -> str:
    return json.dumps({"error": {"code": code, "message": f"{message} Request ID: 021", "param": "", "type": kind}})


def tencent(code: str) -> str:
    return json.dumps({"Response": {"Error": {"Code": code, "Message": "..."}, "RequestId": "ed93f3cb"}})


AWS = "http://internal.amazon.com/coral/com.amazon.bedrock/"
AZURE = (
    "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded {} of "
)
AZURE += "your current OpenAI S0 pricing tier. Please retry after {} seconds."

REFUSALS = [
    Refusal("credit", "openai", 429, openai("You exceeded your current quota, please check your plan and billing "
            "details.", "insufficient_quota", "insufficient_quota"), "quota", "provider_quota"),
    Refusal("requests", "openai", 429, openai("Rate limit reached for gpt-4o in organization org-1 on requests per min "
            "(RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.", "requests", "rate_limit_exceeded"),
            "quota", "rate_limit", ((b"retry-after", b"20"), (b"retry-after-ms", b"19500")), 19_500.0),
    Refusal("tokens", "openai", 429, openai("Rate limit reached for gpt-4o in organization org-1 on tokens per min "
            "(TPM): Limit 30000, Used 29000.", "tokens", "rate_limit_exceeded"), "quota", "rate_limit"),
    Refusal("too large", "openai", 429, openai("Request too large for gpt-4o in organization org-1 on tokens per min "
            "(TPM): Limit 30000, Requested 30601.", "tokens", "rate_limit_exceeded"), "rejected", "over_limit"),
    Refusal("overloaded", "openai", 503, openai("The engine is currently overloaded, please try again later",
            "server_error", None), "saturated", "engine_busy"),
    Refusal("slow down", "openai", 503, openai("Slow down", "service_unavailable_error", "slow_down"), "saturated",
            "engine_busy"),
    Refusal("capacity", "qwen", 503, native("ModelServingError", "Too many requests. Your requests are being throttled "
            "due to system capacity limits."), "saturated", "engine_busy"),
    Refusal("throttled, 503", "bedrock", 503, '{"message":"..."}', "saturated", "engine_busy",
            ((b"x-amzn-errortype", b"ThrottlingException"),)),
    Refusal("unavailable", "bedrock", 503, '{"message":"Bedrock is unable to process your request."}', "saturated",
            "engine_busy", ((b"x-amzn-errortype", b"ServiceUnavailableException"),)),
    Refusal("capacity, 503", "azure", 503, openai("...", None, "NoCapacity"), "saturated", "engine_busy"),
    Refusal("limit as a 400", "hunyuan", 400, tencent("LimitExceeded"), "quota", "rate_limit"),
    Refusal("engine limit as a 400", "hunyuan", 400, tencent("FailedOperation.EngineServerLimitExceeded"), "quota",
            "rate_limit"),
    Refusal("gateway", "azure", 403, '{"statusCode":403,"message":"Out of call volume quota. Quota will be '
            'replenished in 12:00."}', "quota", "provider_quota"),
    Refusal("requests, compatible", "qwen", 429, openai("You exceeded your current requests list.", "limit_requests",
            "limit_requests"), "quota", "rate_limit"),
    Refusal("tokens, compatible", "qwen", 429, openai("You exceeded your current quota, please check your plan and "
            "billing details.", "insufficient_quota", "insufficient_quota"), "quota", "rate_limit"),
    Refusal("burst, compatible", "qwen", 429, openai("Request rate increased too quickly.", "limit_burst_rate",
            "limit_burst_rate"), "quota", "rate_limit"),
    Refusal("requests", "qwen", 429, native("Throttling.RateQuota", "Requests rate limit exceeded, please try again "
            "later."), "quota", "rate_limit"),
    Refusal("tokens", "qwen", 429, native("Throttling.AllocationQuota", "Allocated quota exceeded, please increase "
            "your quota limit."), "quota", "rate_limit"),
    Refusal("overdue", "qwen", 400, openai("Access denied, please make sure your account is in good standing.",
            "Arrearage", "Arrearage"), "quota", "provider_quota"),
    Refusal("free tier", "qwen", 403, openai("The free tier of the model has been exhausted.", None,
            "AllocationQuota.FreeTierOnly"), "quota", "provider_quota"),
    Refusal("limit", "hunyuan", 429, openai("Too many requests.", "", "LimitExceeded"), "quota", "rate_limit"),
    Refusal("engine limit", "hunyuan", 429, tencent("FailedOperation.EngineServerLimitExceeded"), "quota",
            "rate_limit"),
    Refusal("package", "hunyuan", 400, tencent("FailedOperation.ResourcePackExhausted"), "quota", "provider_quota"),
    Refusal("free package", "hunyuan", 429, openai("...", "", "FailedOperation.FreeResourcePackExhausted"), "quota",
            "provider_quota"),
    Refusal("arrears", "hunyuan", 403, tencent("FailedOperation.ServiceStopArrears"), "quota", "provider_quota"),
    Refusal("balance", "hunyuan", 400, tencent("ResourceUnavailable.LowBalance"), "quota", "provider_quota"),
    Refusal("endpoint requests", "ark", 429, ark("RateLimitExceeded.EndpointRPMExceeded", "TooManyRequests", "The "
            "Requests Per Minute (RPM) limit of the associated endpoint for your account has been exceeded."), "quota",
            "rate_limit"),
    Refusal("model tokens", "ark", 429, ark("RateLimitExceeded.FoundationModelTPMExceeded", "TooManyRequests", "The "
            "Tokens Per Minute (TPM) limit of the associated base model has been exceeded."), "quota", "rate_limit"),
    Refusal("overloaded", "ark", 429, ark("ServerOverloaded", "TooManyRequests", "The service is currently unable to "
            "handle additional requests due to server overload."), "saturated", "engine_busy"),
    Refusal("free trial", "ark", 429, ark("QuotaExceeded", "TooManyRequests", "Your account has exhausted its free "
            "trial quota for the model."), "quota", "provider_quota"),
    Refusal("own limit", "ark", 429, ark("SetLimitExceeded", "TooManyRequests", "Your account has reached the set "
            "inference limit for the model."), "quota", "provider_quota"),
    Refusal("overdue", "ark", 403, ark("AccountOverdueError", "Forbidden", "The request failed because your account "
            "has an overdue balance."), "quota", "provider_quota"),
    Refusal("throttled", "bedrock", 429, '{"message":"Too many requests, please wait before trying again."}', "quota",
            "rate_limit", ((b"x-amzn-errortype", f"ThrottlingException:{AWS}".encode()),)),
    Refusal("throttled, no type", "bedrock", 429, '{"message":"Too many tokens, please wait before trying again."}',
            "quota", "rate_limit"),
    Refusal("day", "bedrock", 429, '{"message":"Too many tokens per day, please wait before trying again."}', "quota",
            "provider_quota"),
    Refusal("as OpenAI", "bedrock", 429, openai("Too many requests", "ThrottlingException", None), "quota",
            "rate_limit"),
    Refusal("as a 400", "bedrock", 400, '{"__type":"ThrottlingException","message":"Rate exceeded"}', "quota",
            "rate_limit"),
    Refusal("quota", "bedrock", 400, '{"message":"Your request exceeds the service quota for your account."}', "quota",
            "provider_quota", ((b"x-amzn-errortype", b"ServiceQuotaExceededException"),)),
    Refusal("loading", "bedrock", 429, '{"message":"The model is not ready for inference."}', "saturated", "not_ready",
            ((b"x-amzn-errortype", b"ModelNotReadyException"),)),
    Refusal("tokens", "azure", 429, json.dumps({"error": {"code": "429", "message": AZURE.format("token rate limit",
            9)}}), "quota", "rate_limit", ((b"retry-after", b"9"), (b"retry-after-ms", b"8250")), 8_250.0),
    Refusal("calls", "azure-deployments", 429, json.dumps({"error": {"code": "429", "message": AZURE.format(
            "call rate limit", 1)}}), "quota", "rate_limit"),
    Refusal("named", "azure", 429, openai("...", None, "RateLimitReached"), "quota", "rate_limit"),
    Refusal("demand", "azure", 429, json.dumps({"error": {"code": "429", "message": "The system is currently "
            "experiencing high demand and cannot process your request. Your request exceeds the maximum usage size "
            "allowed during peak load."}}), "saturated", "engine_busy"),
    Refusal("capacity", "azure", 429, openai("No capacity", None, "NoCapacity"), "saturated", "engine_busy"),
    Refusal("credit", "azure", 429, openai("...", "insufficient_quota", "insufficient_quota"), "quota",
            "provider_quota"),
]  # fmt: skip


@pytest.mark.parametrize("one", REFUSALS, ids=lambda one: f"{one.provider}: {one.name}")
def test_each_published_refusal_is_typed(one: Refusal) -> None:
    verdict = classify(one.status, one.headers, one.body.encode(), provider=one.provider)
    assert (verdict.kind, verdict.cause, verdict.retry_after_ms) == (one.kind, one.cause, one.wait_ms)
    assert verdict.retriable, "another provider may have room"


def test_every_preset_has_its_refusals_both_short_and_long() -> None:
    for provider in ("openai", "qwen", "hunyuan", "ark", "bedrock", "azure"):
        causes = {one.cause for one in REFUSALS if one.provider == provider}
        assert {"rate_limit", "provider_quota"} <= causes, provider


@pytest.mark.parametrize("status", [400, 403])
def test_no_message_that_echoes_a_client_makes_a_quota_of_its_error(status: int) -> None:
    echo = openai("Invalid content: 'Throttling.RateQuota, rate limit exceeded, Arrearage'", "invalid_request", "bad")
    assert classify(status, [], echo.encode(), provider="qwen").kind == "rejected"


def test_a_400_that_says_how_long_a_text_may_be_is_the_clients() -> None:
    for provider in ("openai", "azure", "qwen", "ark"):
        told = openai("Too long", "invalid_request_error", "token_limit_exceeded")
        assert classify(400, [], told.encode(), provider=provider).kind == "rejected"


@pytest.mark.parametrize(
    ("provider", "error", "kind", "cause"),
    [
        ("qwen", {"code": "insufficient_quota", "type": "insufficient_quota"}, "quota", "rate_limit"),
        ("openai", {"code": "insufficient_quota", "type": "insufficient_quota"}, "quota", "provider_quota"),
        ("openai", {"code": "billing_hard_limit_reached"}, "quota", "provider_quota"),
        ("openai", {"code": "slow_down"}, "saturated", "engine_busy"),
        ("qwen", {"code": "Arrearage"}, "quota", "provider_quota"),
        ("ark", {"code": "AccountOverdueError", "type": "Forbidden"}, "quota", "provider_quota"),
        ("ark", {"code": "ServerOverloaded", "type": "TooManyRequests"}, "saturated", "engine_busy"),
        ("hunyuan", {"code": "FailedOperation.ResourcePackExhausted"}, "quota", "provider_quota"),
        ("azure", {"code": "NoCapacity"}, "saturated", "engine_busy"),
        ("bedrock", {"type": "modelNotReadyException"}, "saturated", "not_ready"),
        ("bedrock", {"type": "serviceUnavailableException"}, "saturated", "engine_busy"),
        ("bedrock", {"type": "expiredTokenException"}, "stream_error", "unauthorized"),
        ("openai", {"code": "invalid_api_key", "type": "invalid_request_error"}, "stream_error", "unauthorized"),
        ("openai", {"code": "model_not_found", "type": "invalid_request_error"}, "stream_error", "model_not_found"),
        ("", {"type": "PermissionError"}, "stream_error", "error_event"),
    ],
)
def test_an_error_inside_a_200_is_typed_as_one_with_a_status(
    provider: str, error: dict[str, str], kind: str, cause: str
) -> None:
    own = Own(key=provider != "", model=provider != "")
    verdict, _, _ = classify_error({"message": "...", **error}, provider=provider, own=own)
    assert (verdict.kind, verdict.cause, verdict.retriable) == (kind, cause, True)
