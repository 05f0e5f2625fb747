"""What the proxy says itself has the API's form"""

import pytest

from .asks import PLAIN_ASK
from .client import Reply, ask
from .engines import MODEL, Engines
from .target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


def assert_refused(reply: Reply, *statuses: int) -> None:
    assert reply.status in statuses, f"expected {' or '.join(map(str, statuses))}, got {reply}"
    assert reply.error is not None, f"not in the API's form: {reply}"


async def test_the_models_of_all_engines_are_listed_once(target: Target, engines: Engines) -> None:
    reply = await ask(target.url, b"", path="/v1/models", method="GET")
    assert reply.status == 200, f"expected a list, got {reply}"
    listed = [model.get("id") for model in (reply.json or {}).get("data") or ()]
    wanted = sorted([MODEL, *(f"only-{number}" for number in range(len(engines.each)))])
    assert sorted(listed) == wanted, f"listed: {listed}"


async def test_an_unknown_path_is_a_404(target: Target, engines: Engines) -> None:
    assert_refused(await ask(target.url, PLAIN_ASK, path="/v1/nonsense"), 404)


async def test_a_wrong_method_is_a_405_or_404(target: Target, engines: Engines) -> None:
    assert_refused(await ask(target.url, b"", path="/v1/chat/completions", method="GET"), 404, 405)


async def test_an_unknown_model_is_a_404(target: Target, engines: Engines) -> None:
    assert_refused(await ask(target.url, PLAIN_ASK | {"model": "nobody-has-this"}), 404)


async def test_a_body_that_is_not_json_is_a_400(target: Target, engines: Engines) -> None:
    for body in (b"{", b"", b"\xff\xfe", b'{"model": "tiny", "messages": [}'):
        assert_refused(await ask(target.url, body), 400)


async def test_a_body_that_is_no_object_is_a_400(target: Target, engines: Engines) -> None:
    for body in (b"[]", b"null", b'"tiny"', b"[" * 5000 + b"]" * 5000):
        assert_refused(await ask(target.url, body), 400, 422)
