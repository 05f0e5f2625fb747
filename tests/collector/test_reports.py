"""What may be reported, what is refused and where it says so, and what telemetry a report becomes."""

import contextlib
import json
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.api.keys import Refused
from evenload.collector.reports import Report, batches, read_report, sender_of
from evenload.schemas import FirstToken, Outcome, Overdue, RouterLoad, decode_batch, encode

JSON = "application/json"
OUTCOME = {"type": "outcome", "instance": "a", "kind": "ok"}
KNOWN = frozenset({"a", "b"})


def read(data: object, content_type: str = JSON, events_max: int = 10) -> Report:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return read_report(body, content_type, events_max, KNOWN.__contains__)


def report(*events: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"producer": "gateway-1", "events": list(events), **other}


def refusal(data: object, content_type: str = JSON) -> tuple[int, str, str | None, str]:
    with pytest.raises(Refused) as refused:
        read(data, content_type)
    error = refused.value.error
    return error.status, error.code, error.param, error.message


def test_json_and_messagepack_say_the_same() -> None:
    data = report(OUTCOME, session="s", seq=3)
    assert read(data) == read(msgpack.packb(data), "application/msgpack") == read(data, f"{JSON}; charset=utf-8")


@pytest.mark.parametrize(
    ("data", "param", "reason"),
    [
        (report(OUTCOME, {**OUTCOME, "kind": "fine"}), "events[1].kind", "Invalid enum value 'fine'"),
        (report({**OUTCOME, "prompt": "Hello"}), "events[0]", "contains unknown field `prompt`"),
        (report({**OUTCOME, "cause": "what the user wrote"}), "events[0].cause", "matching regex"),
        (report({**OUTCOME, "ttft_ms": -1}), "events[0].ttft_ms", ">= 0"),
        (report({**OUTCOME, "ttft_ms": 1e10}), "events[0].ttft_ms", "<= 1000000000.0"),
        (report({**OUTCOME, "status": "200"}), "events[0].status", "Expected `int`"),
        (report({**OUTCOME, "ago_ms": -1}), "events[0].ago_ms", ">= 0"),
        (report({**OUTCOME, "instance": "c"}), "events[0].instance", "there is no instance 'c'"),
        (report({"type": "membership", "instance": "a", "change": "left"}), "events[0].type", "Invalid value"),
        (report({"type": "engine_gauges", "instance": "a"}), "events[0].type", "Invalid value"),
        (report({"instance": "a"}), "events[0]", "missing required field `type`"),
        (report({"type": "first_token", "instance": "a"}), "events[0]", "missing required field `ttft_ms`"),
        (report(), "events", "length >= 1"),
        ({"events": [OUTCOME]}, None, "missing required field `producer`"),
        (report(OUTCOME, messages=[]), None, "contains unknown field `messages`"),
        (report(OUTCOME) | {"producer": "what the user wrote"}, "producer", "matching regex"),
        (report(OUTCOME, seq=1), "session", "belong together"),
        (report(OUTCOME, session="s"), "seq", "belong together"),
        (report(OUTCOME, session="s", seq=-1), "seq", ">= 0"),
        ([], None, "Expected `object`"),
    ],
)
def test_what_does_not_fit_is_refused_with_index_and_field(data: object, param: str | None, reason: str) -> None:
    status, code, found, message = refusal(data)
    assert (status, code, found) == (422, "invalid_report", param)
    assert reason in message
    assert param is None or message.startswith(f"{param}: ")


def test_what_cannot_be_read_at_all_is_told_from_what_does_not_fit() -> None:
    assert refusal(b"{")[:2] == (400, "undecodable")
    assert refusal(b"\xc1", "application/msgpack")[:2] == (400, "undecodable")
    assert refusal(b"[" * 100_000)[:2] == (422, "invalid_report")
    assert refusal(report(OUTCOME), "text/plain")[:2] == (415, "unsupported_media_type")
    assert refusal(report(OUTCOME), "")[:2] == (415, "unsupported_media_type")
    assert refusal(report(*[OUTCOME] * 11))[:2] == (413, "too_many_events")


@given(st.binary(max_size=300), st.sampled_from([JSON, "application/msgpack"]))
def test_any_bytes_are_a_report_or_refused(body: bytes, content_type: str) -> None:
    with contextlib.suppress(Refused):
        assert isinstance(read(body, content_type), Report)


def test_a_report_becomes_one_batch_per_partition_with_ages_and_in_order() -> None:
    told = read(
        report(
            {**OUTCOME, "ago_ms": 5, "status": 200, "ttft_ms": 120.5, "duration_ms": 900, "output_tokens": 40},
            {"type": "first_token", "instance": "a", "ttft_ms": 120.5, "prompt_tokens": 9, "ago_ms": 800},
            {"type": "overdue", "instance": "b", "waited_ms": 250, "ago_ms": 1000},
            {"type": "load", "instance": "b", "in_flight": 3, "awaiting": 1, "in_flight_tokens": 70},
        )
    )
    sender = sender_of("team", "gateway-1", "s")
    made = batches(told.events, sender, 7, 50_000, partition_of={"a": 1, "b": 3}.__getitem__, generation_of=lambda _: 2)
    assert list(made) == [1, 3]
    assert {(b.producer, b.incarnation, b.seq, b.age_ms, b.view_ms) for b in made.values()} == {
        ("team/gateway-1", sender.incarnation, 7, 1000.0, 49_000)
    }
    outcome = Outcome(
        instance="a", gen=2, at=995, kind="ok", status=200, ttft_ms=120.5, duration_ms=900, output_tokens=40
    )
    assert made[1].events == [FirstToken(instance="a", gen=2, at=200, ttft_ms=120.5, prompt_tokens=9), outcome]
    assert made[3].events == [
        Overdue(instance="b", gen=2, at=0, age_ms=250),
        RouterLoad(instance="b", gen=2, at=1000, in_flight=3, awaiting=1, in_flight_tokens=70),
    ]
    assert all(decode_batch(encode(batch)) == batch for batch in made.values())


def test_no_sender_can_pass_for_another() -> None:
    senders = [
        ("k", "p", "s"),
        ("k2", "p", "s"),
        ("k", "p2", "s"),
        ("k", "p", "s2"),
        ("k", "p/s", ""),
        ("k/p", "s", ""),
    ]
    assert len({sender_of(*one).incarnation for one in senders}) == len(senders)
    assert all(0 <= sender_of(*one).incarnation < 2**63 for one in senders)
