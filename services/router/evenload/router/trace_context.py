"""W3C Trace Context: what of a client's `traceparent` and `tracestate` goes upstream. Pure.

Valid headers pass as they came; without a valid `traceparent` both stay out, as the recommendation wants it, so that
an engine never continues a trace that does not exist. https://www.w3.org/TR/trace-context/
"""

import re

from .headers import Headers

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
NAMES = frozenset({TRACEPARENT, TRACESTATE})
MEMBERS_MAX = 32
STATE_BYTES_MAX = 8192

_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x20-\x7e]*)?")
_MEMBER = re.compile(
    rb"[ \t]*(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e][ \t]*"
)


def checked(headers: Headers) -> Headers:
    """Return the headers without trace context that is not valid."""
    parents = [value for name, value in headers if name == TRACEPARENT]
    if len(parents) != 1 or not is_traceparent(parents[0]):
        return [(name, value) for name, value in headers if name not in NAMES]
    states = [value for name, value in headers if name == TRACESTATE]
    if states and not _is_tracestate(b",".join(states)):
        return [(name, value) for name, value in headers if name != TRACESTATE]
    return headers


def is_traceparent(value: bytes) -> bool:
    """Tell whether a traceparent can be continued; versions to come may have more at their end than version 00."""
    match = _PARENT.fullmatch(value)
    return match is not None and (match[1] != b"00" or match[2] is None)


def _is_tracestate(value: bytes) -> bool:
    if len(value) > STATE_BYTES_MAX:
        return False
    members = [member for member in value.split(b",") if member.strip()]
    return 0 < len(members) <= MEMBERS_MAX and all(_MEMBER.fullmatch(member) for member in members)
