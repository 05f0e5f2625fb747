"""What `GET /fleet` says of gauges that an engine does not give (F30)."""

from typing import Any

import pytest

from evenload.router.fleet import _why
from evenload.routing.policy import InstanceView
from evenload.schemas import InstanceState
from evenload.scoring.config import DEFAULT

NOW_MS = 20_000


def why(**state: Any) -> str:
    view = InstanceView(instance="i", state=InstanceState(instance="i", **state), config=DEFAULT, score=100.0)
    return _why(view, (0.0, 0.0, 0.0), None, NOW_MS)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"waiting": 0, "kv_usage": 0.0, "gauges_ms": NOW_MS}, "Nothing speaks against it."),
        ({"waiting": 0, "gauges_ms": NOW_MS}, "Its page does not say its KV cache: unknown, not 0."),
        ({"gauges_ms": NOW_MS}, "Its page does not say its queue and KV cache: unknown, not 0."),
        ({"waiting": 0, "gauges_ms": 0}, "Its gauges stopped coming, so queue and KV cache are unknown."),
        ({}, "Nothing speaks against it."),
    ],
)
def test_a_gauge_that_is_unknown_is_said_to_be_unknown(state: dict[str, Any], said: str) -> None:
    assert why(**state) == said
