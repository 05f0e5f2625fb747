"""W3C trace context: what is valid goes upstream as it came, what is not stays out."""

import pytest

from evenload.router.fakes import post
from evenload.router.trace_context import checked, is_traceparent
from tests.router.stage import GOOD, STREAM, stage

TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
PARENT = b"00-" + TRACE + b"-" + SPAN + b"-01"


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (PARENT, True),
        (PARENT[:-2] + b"ff", True),
        (b"cc" + PARENT[2:], True),
        (b"cc" + PARENT[2:] + b"-what-may-come", True),
        (PARENT + b"-more", False),
        (b"ff" + PARENT[2:], False),
        (PARENT.upper(), False),
        (b"00-" + b"0" * 32 + b"-" + SPAN + b"-01", False),
        (b"00-" + TRACE + b"-" + b"0" * 16 + b"-01", False),
        (PARENT[:-1], False),
        (PARENT + b" ", False),
        (b"", False),
    ],
)
def test_a_traceparent_is_valid_as_the_recommendation_says(value: bytes, valid: bool) -> None:
    assert is_traceparent(value) is valid


@pytest.mark.parametrize(
    ("state", "valid"),
    [
        (b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", True),
        (b"fw529a3039@dt=x, a/b*c_d-e=1 2", True),
        (b"a=1,,b=2", True),
        (b"A=1", False),
        (b"a", False),
        (b"a=b=c", False),
        (b",", False),
        (b",".join(b"k%d=v" % n for n in range(33)), False),
    ],
)
def test_a_tracestate_that_is_not_valid_goes_alone(state: bytes, valid: bool) -> None:
    headers = [(b"traceparent", PARENT), (b"tracestate", state), (b"accept", b"*/*")]
    assert checked(headers) == (headers if valid else [headers[0], headers[2]])


async def test_the_context_goes_upstream_as_it_came_or_not_at_all() -> None:
    async with stage(GOOD) as s:
        await post(s.url, STREAM, (b"traceparent", PARENT), (b"tracestate", b"a=1"))
        await post(s.url, STREAM, (b"traceparent", b"00-oops"), (b"tracestate", b"a=1"))
        await post(s.url, STREAM, (b"tracestate", b"a=1"))
        await post(s.url, STREAM, (b"traceparent", PARENT), (b"traceparent", PARENT))
        first, *others = (seen.headers for seen in s.engines[0].requests)
        assert (first[b"traceparent"], first[b"tracestate"]) == (PARENT, b"a=1")
        for headers in others:
            assert headers.keys().isdisjoint({b"traceparent", b"tracestate"})
