"""How tests of the HTTP client ask an upstream."""

from evenload.router.fake_wire import response
from evenload.router.upstream import Response, Upstream

OK = response(200, b'{"ok":true}')


async def ask(client: Upstream, body: bytes = b"{}") -> Response:
    return await client.request("POST", b"/v1/completions", [(b"content-type", b"application/json")], body)


async def ask_all(client: Upstream, body: bytes = b"{}") -> bytes:
    answer = await ask(client, body)
    try:
        return await answer.read_all(1 << 20)
    finally:
        answer.release()
