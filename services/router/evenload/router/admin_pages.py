"""The paths of `admin.py`: every one wants an operator's key."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Response, Security
from fastapi import Request as FastRequest
from fastapi.security import HTTPBearer

from evenload.api.errors import ApiError
from evenload.api.keys import Key, Refused
from evenload.router.admin import Admin, AdminError

BODY_BYTES_MAX = 64 * 1024
Refuse = Callable[[FastRequest, ApiError, Mapping[str, str] | None], Response]

_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is no instance."},
    401: {"description": "No operator's key."},
    403: {"description": "There are no operators' keys."},
    404: {"description": "No such instance or pool."},
    409: {"description": "It is not possible now; the message says why."},
    413: {"description": "The body is too large."},
    500: {"description": "The file of changes cannot be written; the message says why."},
}
_TEXT = {"type": "string"}
# Not the model's own schema: its names of definitions would be the application's.
_INSTANCE = {
    "type": "object",
    "description": "As in `pools[].instances` (docs/configuration.md), and its pool. An `id` alone brings back one "
    "that was taken out.",
    "properties": {"pool": _TEXT, "id": _TEXT, "url": _TEXT, "kind": _TEXT},
}
_ADD = {"requestBody": {"required": True, "content": {"application/json": {"schema": _INSTANCE}}}}
_KEY = Security(HTTPBearer(scheme_name="operator", description="An operator's key.", auto_error=False))


def add_admin(app: FastAPI, admin: Admin, refuse: Refuse) -> None:
    """Add the paths to an application; `refuse` writes errors in the API's form."""
    paths = APIRouter(dependencies=[_KEY], responses=_RESPONSES)  # the key is told of there, and looked at by `answer`

    async def answer(
        request: FastRequest, work: Callable[[Key], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any] | Response:
        try:
            return await work(admin.operator(dict(request.headers.raw)))
        except Refused as refused:
            return refuse(request, refused.error, {"www-authenticate": "Bearer"})
        except AdminError as error:
            return refuse(request, error.error, None)

    @paths.get("/admin/instances", response_model=None)
    async def list_instances(request: FastRequest) -> dict[str, Any] | Response:
        """All instances, with their sources and states."""

        async def work(_: Key) -> dict[str, Any]:
            return {"instances": admin.listed()}

        return await answer(request, work)

    @paths.post("/admin/instances", response_model=None, openapi_extra=_ADD)
    async def add_instance(request: FastRequest) -> dict[str, Any] | Response:
        """Add an instance: as in `pools[].instances`, with its `pool`."""

        async def work(key: Key) -> dict[str, Any]:
            return await admin.add(key, await _body(request))

        return await answer(request, work)

    @paths.post("/admin/instances/{name:path}/drain", response_model=None)
    async def drain_instance(name: str, request: FastRequest) -> dict[str, Any] | Response:
        """No new requests while others can take them."""

        async def work(key: Key) -> dict[str, Any]:
            return admin.drain(key, name, drains=True)

        return await answer(request, work)

    @paths.post("/admin/instances/{name:path}/undrain", response_model=None)
    async def undrain_instance(name: str, request: FastRequest) -> dict[str, Any] | Response:
        """Requests again."""

        async def work(key: Key) -> dict[str, Any]:
            return admin.drain(key, name, drains=False)

        return await answer(request, work)

    @paths.delete("/admin/instances/{name:path}", response_model=None)
    async def remove_instance(name: str, request: FastRequest) -> dict[str, Any] | Response:
        """Take an instance out: it drains, then it leaves."""

        async def work(key: Key) -> dict[str, Any]:
            return await admin.remove(key, name)

        return await answer(request, work)

    app.include_router(paths)


async def _body(request: FastRequest) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise AdminError(413, "body_too_large", f"The body is larger than {BODY_BYTES_MAX} bytes.")
    return bytes(body)
