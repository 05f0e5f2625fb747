"""The administrative pages do what their OpenAPI document says, whatever they are asked (schemathesis)."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

from evenload.router.fakes import post
from tests.router.stage import GOOD, fleet

EXAMPLES = 5  # none of the pages takes a parameter


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A router on a loop of its own, since schemathesis asks from this thread."""
    served: list[str] = []
    up, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with fleet(GOOD) as f:
            await post(f.url, {"model": "tiny"})
            served.append(f.url)
            up.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    up.wait(20.0)
    yield served[0]
    over.set()
    thread.join(20.0)


def test_every_page_keeps_to_its_document(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operations.append(found.ok())
    assert {operation.path for operation in operations} >= {"/healthz", "/readyz", "/fleet", "/metrics", "/v1/models"}
    for operation in operations:
        # That a router is not ready is an answer, not a fault.
        holds(operation, excluded=[schemathesis.checks.not_a_server_error] if operation.path == "/readyz" else [])


def holds(operation: Any, excluded: list[Any]) -> None:
    """Ask one page in many ways."""

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(excluded_checks=excluded)

    check()
