"""`/healthz`, `/readyz` and `/metrics`. Faust's own server shows more than an operator needs."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST


async def serve(host: str, port: int, unready: Callable[[], str | None], metrics: Callable[[], bytes]) -> web.AppRunner:
    """Start serving; the caller cleans the runner up.

    Args:
        host: address to listen on.
        port: 0 takes any.
        unready: returns why the worker is not ready, or None.
        metrics: returns the text of `/metrics`.

    Raises:
        OSError: the address cannot be listened on.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = unready()
        return web.Response(text="ready\n") if reason is None else web.Response(text=f"{reason}\n", status=503)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner
