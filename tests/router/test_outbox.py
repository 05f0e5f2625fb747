"""Decision records wait for company, in order, and never for long."""

from typing import NamedTuple

from evenload.router.outbox import WAITING_MAX, Outbox
from evenload.schemas import Decision, decode_decision


def decision(number: int) -> Decision:
    return Decision(
        v=1,
        request_id=f"req-{number}",
        attempt=0,
        router="r",
        incarnation=1,
        model="tiny",
        pool="chat",
        policy="health",
        now_ms=1,
        prompt_tokens=1,
        ordinal=number,
        winner="a",
        reason="only",
        probability=1.0,
        draws=[],
        candidates=[],
        offsets={},
        tails=[],
        config_digest="",
        code_digest="",
    )


class Made(NamedTuple):
    number: int

    def record(self) -> Decision:
        return decision(self.number)


def test_records_are_handed_on_in_order_with_their_request_as_key() -> None:
    sent: list[tuple[bytes, bytes]] = []
    outbox = Outbox(lambda key, value: sent.append((key, value)))
    outbox.add(Made(1))
    outbox.add(Made(2))
    assert (len(outbox), sent) == (2, [])
    outbox.flush()
    assert [key for key, _ in sent] == [b"req-1", b"req-2"]
    assert [decode_decision(value).ordinal for _, value in sent] == [1, 2]
    assert len(outbox) == 0


def test_a_full_outbox_does_not_wait_for_the_ticker() -> None:
    sent: list[bytes] = []
    outbox = Outbox(lambda key, _: sent.append(key))
    for number in range(WAITING_MAX + 1):
        outbox.add(Made(number))
    assert (len(sent), len(outbox)) == (WAITING_MAX, 1)
