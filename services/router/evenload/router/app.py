"""Everything of the router that is not hot: health, readiness, metrics, the fleet page. FastAPI serves it.

The proxy takes `/v1/*` before FastAPI sees it, because routing inside a framework costs more than the rest of a
request.
"""

import time
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

from fastapi import FastAPI, Response
from fastapi import Request as FastRequest
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from evenload.api.errors import ApiError
from evenload.router.admin import Admin
from evenload.router.admin_pages import add_admin
from evenload.router.dispatcher import Dispatcher
from evenload.router.endpoints import ENDPOINTS, form_of
from evenload.router.fleet import fleet
from evenload.router.metrics import RouterMetrics
from evenload.router.models import ModelsPage
from evenload.router.proxy import own_request_id
from evenload.router.telemetry import Telemetry
from evenload.schemas import __version__

Part = Literal["api", "pages"]
PARTS: tuple[Part, ...] = ("api", "pages")
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    dispatcher: Dispatcher,
    telemetry: Telemetry,
    metrics: RouterMetrics,
    stale_view_ms: Callable[[], float],
    lifespan: Lifespan | None = None,
    *,
    serves: tuple[Part, ...] = PARTS,
    admin: Admin | None = None,
) -> FastAPI:
    """Return an application for what is not hot.

    Args:
        dispatcher: whose view is shown.
        telemetry: knows whether the router is ready.
        metrics: for the metrics page.
        stale_view_ms: age of a snapshot from which the view says stale.
        lifespan: of the server, for one of the applications.
        admin: what operators may do, part of "pages".
        serves: "api" is `/v1/models`, "pages" is what operators look at; probes are always there.
    """
    openapi_url = "/openapi.json" if "pages" in serves else None  # without it there is no /docs either
    app = FastAPI(title="Evenload router", version=__version__, lifespan=lifespan, openapi_url=openapi_url)
    _add_probes(app, dispatcher, telemetry, stale_view_ms)
    _add_refusals(
        app,
        ENDPOINTS if "api" in serves else (),
        "See /docs for what is" if "pages" in serves else "See GET /v1/models for the models",
    )
    if "api" in serves:
        models = ModelsPage(dispatcher, time.monotonic)

        @app.get("/v1/models")
        async def get_models(request: FastRequest, response: Response) -> dict[str, Any]:
            """The models that are served here, in OpenAI's form."""
            response.headers.update(_id_headers(request))
            return await models.read()

        @app.get("/v1/models/{name:path}", response_model=None, responses={404: {"description": "No pool serves it."}})
        async def get_model(name: str, request: FastRequest, response: Response) -> dict[str, Any] | Response:
            """One of them."""
            response.headers.update(_id_headers(request))
            entry = next((entry for entry in (await models.read())["data"] if entry["id"] == name), None)
            return entry or _refuse(request, _no_such_model(name))

    if "pages" in serves:
        if admin is not None:
            add_admin(app, admin, _refuse)

        @app.get("/fleet")
        async def get_fleet() -> dict[str, Any]:
            """What this router believes of each instance, and why."""
            return fleet(dispatcher, stale_view_ms())

        @app.get("/metrics", response_class=PlainTextResponse)
        async def get_metrics() -> Response:
            """Prometheus metrics."""
            _read_gauges(dispatcher, telemetry, metrics)
            return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _add_probes(app: FastAPI, dispatcher: Dispatcher, telemetry: Telemetry, stale_view_ms: Callable[[], float]) -> None:
    # Balancers and monitors also probe with HEAD.
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", responses={503: {"description": "Not ready; the reasons are in the body."}})
    async def readyz(response: Response) -> dict[str, Any]:
        """Ready to take requests. Stale telemetry is told, but does not make a router unready: it routes on."""
        reasons = telemetry.not_ready()
        response.status_code = 503 if reasons else 200
        age_ms = dispatcher.view.stale_ms(dispatcher.clock())
        return {
            "ready": not reasons,
            "reasons": reasons,
            "view": "local only" if age_ms is None else "stale" if age_ms > stale_view_ms() else "fresh",
            "snapshot_age_ms": None if age_ms is None else round(age_ms),
            "kafka_refuses": telemetry.rights.lacking,
        }


def _add_refusals(app: FastAPI, endpoints: Container[str], see: str) -> None:
    @app.exception_handler(404)
    @app.exception_handler(405)
    async def not_served(request: FastRequest, error: Exception) -> Response:
        """In the API's form, which clients can read."""
        status = getattr(error, "status_code", 404)
        # A 405 has to say what is served.
        served = {"allow": "POST"} if request.url.path in endpoints else getattr(error, "headers", None) or {}
        return _refuse(request, _unserved(request.method, request.url.path, status, endpoints, see), served)


def _unserved(method: str, path: str, status: int, endpoints: Container[str], see: str) -> ApiError:
    """Say why a path is not served, and what is."""
    if path.startswith("/v1/responses/") and endpoints:
        message = (
            "Responses are not stored by the router, so none can be fetched, cancelled or deleted by its id. Keep what "
            "POST /v1/responses answered, and send the whole conversation as `input`."
        )
        return ApiError(status=404, code="responses_not_stored", message=message)
    known = path in endpoints or status == 405
    status, code = (405, "method_not_allowed") if known else (404, "not_found")
    hint = "POST it" if path in endpoints else "GET it" if known else see
    return ApiError(status=status, code=code, message=f"{method} {path[:200]} is not served here. {hint}.")


def _no_such_model(name: str) -> ApiError:
    message = f"The model {name[:200]} is not served here. GET /v1/models lists those that are."
    return ApiError(status=404, code="model_not_found", message=message, param="model")


def _refuse(request: FastRequest, error: ApiError, more: Mapping[str, str] | None = None) -> Response:
    headers = _id_headers(request)
    form = form_of(request.url.path, anthropic_client="anthropic-version" in request.headers)
    body = error.body(headers["x-request-id"].encode("ascii"), form)
    return Response(body, error.status, {**headers, **(more or {})}, media_type="application/json")


def _id_headers(request: FastRequest) -> dict[str, str]:
    """Return the headers that tell the request's id, as the request's API names them."""
    request_id = own_request_id(dict(request.headers.raw)).decode("ascii")
    form = form_of(request.url.path, anthropic_client="anthropic-version" in request.headers)
    return {"x-request-id": request_id} | ({"request-id": request_id} if form == "anthropic" else {})


def _read_gauges(dispatcher: Dispatcher, telemetry: Telemetry, metrics: RouterMetrics) -> None:
    now_ms = dispatcher.log_clock.now_ms(dispatcher.clock())
    for pool in dispatcher.pools.values():
        metrics.token_error.labels(pool.name).set(pool.token_error)
        metrics.retries_withheld.labels(pool.name).set(pool.retries.withheld)
        for view in dispatcher.views(pool, now_ms):
            metrics.in_flight.labels(pool.name, view.instance).set(view.in_flight)
            metrics.score.labels(pool.name, view.instance).set(view.score)
    age_ms = dispatcher.view.stale_ms(dispatcher.clock())
    metrics.snapshot_age.set(-1 if age_ms is None else age_ms / 1000.0)
    for state, count in telemetry.counts().items():
        metrics.telemetry.labels(state).set(count)
