"""What an upstream's error means: whose fault it is, what it says about the instance, and whether to try another.

Pure. Three rules keep a client from steering verdicts about an instance through its own request:
1. a 4xx that is not 401, 402, 408 or 429 is the client's, unless type or code (never an echo of input) say quota, or
   that Evenload's own credential or model name is wrong (`blame.py`);
2. for those, a message counts only by how it *begins*, because engines echo input further inside;
3. a message is looked at in its first 2,048 characters and never kept (`error_fields.py`).
"""

import math
from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from evenload.schemas.telemetry import MILLISECONDS_MAX, OutcomeKind

from . import blame
from .error_fields import Fields, fields_of, fields_of_object, has_any, words_of
from .quota import (
    BUSY_WORDS,
    LOAD_PHRASES,
    LOAD_WORDS,
    LONG_PHRASES,
    SHORT_AT_400,
    SHORT_PHRASES,
    long_by_word,
    short_by_word,
)

_KEY_LIMIT_PHRASES = (
    "per key",
    "per-key",
    "api key limit",
    "key limit",
    "for this key",
    "virtual key",
    "per user",
    "per-user",
)
# In `type` or `code`, as in `quota.py`.
_KEY_LIMIT_WORDS = ("keyratelimit", "keylimit", "userratelimit")
_KV_PHRASES = ("kv cache", "kv-cache", "kv_cache", "cache blocks", "kv blocks")
_BUSY_PHRASES = (
    "currently busy",
    "cannot accept new requests",
    "queue is full",
    "queue full",
    "overloaded",
    "too many requests in",
    "no available slot",
    "at capacity",
    "model is busy",
    "experiencing high demand",  # Azure
    "due to server overload",  # Ark
)
_DRAINING_PHRASES = ("cannot schedule new futures after shutdown", "shutting down", "is draining", "server is stopping")
_LOADING_PHRASES = ("loading model", "model is loading", "not ready", "starting up")
_DEAD_PHRASES = ("enginecore encountered", "enginedead", "engine is dead", "background loop has errored")


class Verdict(msgspec.Struct, frozen=True):
    """The meaning of an error.

    Attributes:
        kind: as in the `Outcome` event.
        cause: short stable code.
        retry_after_ms: what the upstream asked for, None if it did not.
        retriable: whether another instance may do better.
        said: whether the client may have the upstream's words: they may have a part of the key, or the account's name.
    """

    kind: OutcomeKind
    cause: str
    retry_after_ms: float | None = None
    retriable: bool = True
    said: bool = True


class Own(msgspec.Struct, frozen=True):
    """What of a request was Evenload's own, by which its faults are told from the client's.

    Attributes:
        key: a credential of Evenload's was sent.
        model: the settings name the model; it is not the client's own word.
    """

    key: bool = False
    model: bool = False


NOTHING_OWN = Own()
CONTENT = "content_filter"  # cause of what an inspection of content has refused


def classify(
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    body_prefix: bytes,
    *,
    now_s: float = 0.0,
    provider: str = "",
    own: Own = NOTHING_OWN,
) -> Verdict:
    """Judge a response that is not a 2xx.

    Args:
        status: HTTP status.
        headers: with lower-case names.
        body_prefix: the body, or its beginning.
        now_s: seconds since 1970, for a Retry-After that is a date.
        provider: the instance's preset, for words that mean something else there.
        own: what of the request was not the client's.
    """
    headers = list(headers)
    wait_ms = retry_after_ms(headers, now_s)
    fields = fields_of(body_prefix)
    aws_type = dict(headers).get(b"x-amzn-errortype")
    if aws_type is not None:  # `ThrottlingException:http://...`; the body may have the message only
        words = words_of(aws_type.partition(b":")[0].decode("ascii", "replace"))
        fields = msgspec.structs.replace(fields, words=fields.words + words)
    kind, cause, retriable = _judge(status, fields, asked_to_wait=wait_ms is not None, provider=provider, own=own)
    return Verdict(kind, cause, wait_ms, retriable, _may_be_said(status, cause, theirs=own.key or provider != ""))


def classify_error(
    error: Any, *, error_type: str = "", provider: str = "", own: Own = NOTHING_OWN
) -> tuple[Verdict, int | None, str]:
    """Judge an error object that came inside a 200, in an event or as the body.

    Args:
        error: the decoded object, or a string.
        error_type: a type that stood beside it.
        provider: the instance's preset, for words that mean something else there.
        own: what of the request was not the client's.

    Returns:
        The verdict, the numeric code if there is one, and the short type.
    """
    fields = fields_of_object(error if isinstance(error, dict) else {"message": error, "type": error_type})
    code = fields.code if fields.code is not None and 400 <= fields.code <= 599 else None
    status = code or _status_of(fields.words, provider, own)
    kind, cause, retriable = _judge(status, fields, asked_to_wait=False, provider=provider, own=own)
    if kind == "http_error":
        kind, cause = "stream_error", cause if code or cause in _CAUSES_BY_TEXT else "error_event"
    said = _may_be_said(status, cause, theirs=own.key or provider != "")
    return Verdict(kind, cause, None, retriable, said), code, fields.type


def client_status(code: int | None) -> int:
    """Return the status of an answer that is the client's error: its code where that is a 4xx, else 400."""
    return code if code is not None and 400 <= code < 500 else 400


_CAUSES_BY_TEXT = ("draining", "engine_dead", "not_ready", "unauthorized", "model_not_found")
_UNSAID = ("unauthorized", "model_not_found", "over_limit")


def _may_be_said(status: int, cause: str, *, theirs: bool) -> bool:
    """Tell it; a provider's 403 is about Evenload's account: AWS quotes host and token in it."""
    return cause not in _UNSAID and not (theirs and status == 403 and cause != CONTENT)


def retry_after_ms(headers: Iterable[tuple[bytes, bytes]], now_s: float) -> float | None:
    """Return how long an upstream asks to wait: `retry-after-ms`, else `retry-after` in seconds or as an HTTP date."""
    found = {name: value for name, value in headers if name in (b"retry-after", b"retry-after-ms")}
    exact = _number(found.get(b"retry-after-ms", b""))
    if exact is not None:
        return min(exact, MILLISECONDS_MAX)
    text = found.get(b"retry-after", b"")
    seconds = _number(text)
    if seconds is None:
        seconds = _seconds_until(text, now_s)
    return None if seconds is None else min(seconds * 1000.0, MILLISECONDS_MAX)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _seconds_until(text: bytes, now_s: float) -> float | None:
    try:
        moment = parsedate_to_datetime(text.decode("ascii"))
    except (ValueError, TypeError, IndexError, OverflowError):  # of a parser that is made for e-mail
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - now_s)


def _judge(
    status: int, fields: Fields, *, asked_to_wait: bool, provider: str, own: Own
) -> tuple[OutcomeKind, str, bool]:
    """Return kind, cause, retriable."""
    if blame.is_content(fields.words):
        return "rejected", CONTENT, False
    if _is_long_quota(status, fields, provider):
        return "quota", "provider_quota", True
    if status == 429 or (status in (400, 403) and _is_rate(fields.words, provider)):
        return _judge_429(fields, provider)
    if status in (503, 529):
        return _judge_503(status, fields, asked_to_wait=asked_to_wait)
    return _judge_rest(status, fields, own)


def _is_rate(words: str, provider: str) -> bool:
    """Tell whether type or code name a rate in an error that is the client's by its status."""
    return "throttling" in words or has_any(words, SHORT_AT_400.get(provider, ()))


def _judge_rest(status: int, fields: Fields, own: Own) -> tuple[OutcomeKind, str, bool]:
    if blame.is_credentials(status, fields.words, fields.message, own_key=own.key, own_model=own.model):
        # It saw Evenload's own credential: the client cannot mend it, another instance may do.
        return "http_error", "unauthorized", True
    if own.model and blame.is_model(status, fields.words, fields.message):
        return "http_error", "model_not_found", True
    if 400 <= status < 500 and status != 408:
        return "rejected", f"http_{status}", False
    return "http_error", _cause_of_failure(status, fields), True


def _cause_of_failure(status: int, fields: Fields) -> str:
    for phrases, cause in ((_DRAINING_PHRASES, "draining"), (_DEAD_PHRASES, "engine_dead")):
        if has_any(fields.message, phrases):
            return cause
    return f"http_{status}"


def _is_long_quota(status: int, fields: Fields, provider: str) -> bool:
    if status == 402:
        return True
    if status not in (400, 403, 429, 503):
        return False
    if long_by_word(fields.words, provider):
        return True
    if status in (429, 503):
        return has_any(fields.message, LONG_PHRASES) and not short_by_word(fields.words, provider)
    return fields.message.startswith(LONG_PHRASES)


def _judge_429(fields: Fields, provider: str) -> tuple[OutcomeKind, str, bool]:
    if fields.message.startswith("request too large"):
        return "rejected", "over_limit", True  # more than a whole minute's tokens; the account itself has not run out
    if has_any(fields.message, _KV_PHRASES):
        return "saturated", "kv_exhausted", True
    if has_any(fields.words, BUSY_WORDS) or has_any(fields.message, _BUSY_PHRASES):
        return "saturated", "not_ready" if "modelnotready" in fields.words else "engine_busy", True
    if has_any(fields.message, _KEY_LIMIT_PHRASES) or has_any(fields.words, _KEY_LIMIT_WORDS):
        return "rejected", "key_limit", False
    if short_by_word(fields.words, provider) or has_any(fields.message, SHORT_PHRASES):
        # The upstream sees Evenload's credential, never the client's: this limit is the account's.
        return "quota", "rate_limit", True
    return "saturated", "http_429", True


def _judge_503(status: int, fields: Fields, *, asked_to_wait: bool) -> tuple[OutcomeKind, str, bool]:
    if has_any(fields.message, _KV_PHRASES):
        return "saturated", "kv_exhausted", True
    if has_any(fields.words, BUSY_WORDS + LOAD_WORDS):
        return "saturated", "not_ready" if "modelnotready" in fields.words else "engine_busy", True
    if has_any(fields.message, _BUSY_PHRASES + LOAD_PHRASES) or status == 529:
        return "saturated", "engine_busy", True
    if has_any(fields.message, _DRAINING_PHRASES):
        return "http_error", "draining", True
    if has_any(fields.message, _LOADING_PHRASES):
        return "http_error", "not_ready", True
    return ("saturated" if asked_to_wait else "http_error"), "http_503", True


def _status_of(words: str, provider: str, own: Own) -> int:
    """Return the status that an error without a numeric code stands for."""
    if long_by_word(words, provider):
        return 429
    if "overloaded" in words:
        return 529
    if "quota" in words or short_by_word(words, provider) or has_any(words, BUSY_WORDS):
        return 429
    blamed = blame.status_of(words, own_key=own.key)
    if blamed is not None:
        return blamed
    return next((status for status, needles in _STATUSES if has_any(words, needles)), 500)


_STATUSES = (
    (503, LOAD_WORDS),
    (404, ("notfounderror",)),
    (413, ("requesttoolarge",)),
    (400, ("invalidrequest", "badrequest", "validation")),
)
