"""A small real fleet for end-to-end tests: engines in this loop, Evenload's services as processes."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenload.broker import ports
from evenload.cli.local import service, write_settings
from evenload.cli.supervise import Child, ChildSpec
from evenload.demo.engine_server import EngineFleet, EngineServer
from evenload.settings import Settings

MODEL = "demo-8b"


def engines(count: int, **options: Any) -> EngineFleet:
    """Fast engines on free ports."""
    return EngineFleet([EngineServer(name=f"engine-{n}", model=MODEL, speed=20.0, **options) for n in range(count)])


def settings_for(
    fleet: EngineFleet, bootstrap: str, prefix: str, *, spool: Path | None = None, **router: Any
) -> Settings:
    """Settings of one pool over a started fleet, with free ports for everything."""
    free = [ports.choose_free("127.0.0.1") for _ in range(3)]
    return Settings.model_validate(
        {
            "kafka": {"bootstrap": bootstrap, "topic_prefix": prefix},
            "pools": [
                {
                    "name": "chat",
                    "models": [MODEL],
                    "instances": [{"id": server.name, "url": server.url} for server in fleet.engines],
                }
            ],
            "router": {"port": free[0], "seed": 1, **router},
            "scorer": {"web_port": free[1], "session_timeout_s": 3, "heartbeat_interval_s": 1},
            "collector": {"metrics_port": free[2]},
            "spool": {"dir": spool},
        }
    )


def start(name: str, command: str, settings: Settings, folder: Path, log: list[str] | None = None) -> Child:
    """Start one of Evenload's processes; its output is in `log`, the end of it in `tail` of the child."""
    file = write_settings(settings, folder / f"{name}.yaml")
    spec: ChildSpec = service(name, command, settings, file)
    child = Child(spec, emit=lambda _, line: None if log is None else log.append(line))
    child.start()
    return child


def get(port: int, path: str) -> Any:
    """GET a JSON document from loopback; None while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)
    except OSError:
        return None


async def becomes(port: int, path: str, condition: Callable[[Any], bool], timeout_s: float = 30.0) -> Any:
    """Wait until a page says something."""
    seen: Any = None
    try:
        async with asyncio.timeout(timeout_s):
            while seen is None or not condition(seen):
                await asyncio.sleep(0.05)
                seen = await asyncio.to_thread(get, port, path)
    except TimeoutError:
        raise AssertionError(f"{path} did not come to hold within {timeout_s:g} s; it says {seen}") from None
    return seen
