"""Bit for bit: a stored log gives the stored states and snapshots on any supported Python."""

import pytest

from evenload.schemas import InstanceState, decode_batch
from evenload.scoring import fold
from tests.scoring import golden_log


@pytest.fixture(scope="module")
def records() -> golden_log.Records:
    return golden_log.load()


def test_the_golden_log_gives_the_expected_states_and_snapshots(records: golden_log.Records) -> None:
    assert golden_log.results(records) == golden_log.expected()


def test_the_golden_log_is_worth_its_bytes(records: golden_log.Records) -> None:
    """It has what can happen, so that equality of its digests says something."""
    assert len(records) == golden_log.BATCHES
    assert golden_log.LOG.stat().st_size < 200_000
    events = [event for _, data in records for event in decode_batch(data).events]
    assert len({type(event) for event in events}) == 6
    config = golden_log.CONFIGS["published"]
    states: dict[str, InstanceState] = {}
    seen: dict[str, int] = dict.fromkeys(COUNTED, 0)
    for offset, (log_ms, data) in enumerate(records):
        changed = fold(states, decode_batch(data), offset, log_ms, lambda _instance: config)
        states.update(changed)
        for state in changed.values():
            for name in COUNTED:
                seen[name] = max(seen[name], getattr(state, name))
    assert all(seen.values()), seen


COUNTED = (
    "first_tokens",
    "overdue",
    "successes",
    "errors",
    "saturations",
    "restarts",
    "aged",
    "older_generation",
    "generation",
    "cooling_hits",
)
