"""The administrative pages do what their OpenAPI document says, whatever they are asked (schemathesis)."""

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

from evenload.router.fakes import post
from tests.router.stage import GOOD
from tests.router.test_discovery import following

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
PLAIN_EXAMPLES = 5  # of what takes no parameter


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL and operators' key of a router on a loop of its own, since schemathesis asks from this thread."""
    found: list[tuple[str, str]] = []
    up, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with following(tmp_path_factory.mktemp("admin"), [GOOD], [GOOD], listed=2, operators=True) as (f, secret):
            await post(f.url, {"model": "tiny"})
            found.append((f.url, secret))
            up.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert up.wait(20.0)
    yield found[0]
    over.set()
    thread.join(20.0)


def test_every_page_keeps_to_its_document(served: tuple[str, str]) -> None:
    url, secret = served
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operations.append(found.ok())
    assert {operation.path for operation in operations} >= {
        "/healthz", "/readyz", "/fleet", "/metrics", "/v1/models", "/v1/models/{name}",
        "/admin/instances", "/admin/instances/{name}", "/admin/instances/{name}/drain",
    }  # fmt: skip
    for operation in operations:
        holds(operation, secret)


def holds(operation: Any, secret: str) -> None:
    """Ask one page in many ways."""
    excluded = {
        "/readyz": [schemathesis.checks.not_a_server_error],  # that a router is not ready is an answer, not a fault
        "/admin/instances": [schemathesis.checks.positive_data_acceptance],  # settings have rules that no schema tells
    }.get(operation.path, [])
    examples = EXAMPLES if operation.body or operation.path_parameters else PLAIN_EXAMPLES

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        if operation.path.startswith("/admin"):
            case.headers["Authorization"] = f"Bearer {secret}"
        case.call_and_validate(excluded_checks=excluded)

    check()
