"""The running stack: who is in it, what its routers believe, and SIGKILL."""

import asyncio
import json
import os
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from evenload.demo.http_probe import Reply, probe
from tools.compose_demo.traffic import ROUTER_HEADER
from tools.compose_demo.verdict import FRESH_MS

HOST_NAME_LENGTH: Final = 12  # a container's host name is the beginning of its id
COMMAND_S: Final = 60.0
AUDIT_S: Final = 300.0
PAUSE_S: Final = 0.2
LOOKS: Final = 60  # requests after which all routers behind the proxy have been met


class StackError(Exception):
    """The stack is not up, or a docker command failed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class RouterAt:
    """A router: the proxy's slot, and the container behind it."""

    slot: str
    container: str


class Stack:
    """The stack of this checkout.

    Args:
        url: The proxy's address.
        compose: Words of the compose command.
        docker: Words of the docker command.
    """

    def __init__(self, url: str, compose: list[str] | None = None, docker: list[str] | None = None) -> None:
        self.url = url
        self._compose = compose or shlex.split(os.environ.get("COMPOSE", "docker compose"))
        self._docker = docker or shlex.split(os.environ.get("DOCKER", "docker"))

    async def containers(self, service: str) -> list[str]:
        """Ids of a service's running containers.

        Raises:
            StackError: There is none.
        """
        ids = (await _run(*self._compose, "ps", "--quiet", "--status", "running", service)).split()
        if not ids:
            raise StackError(f"no container of {service!r} runs; start the stack with: make compose-up")
        return ids

    async def router(self) -> RouterAt:
        """One of the routers that take requests.

        Raises:
            StackError: The proxy's answer and the containers do not fit.
        """
        slot, fleet = await self._fleet()
        host = str(fleet["router"])[:HOST_NAME_LENGTH]
        for container in await self.containers("router"):
            if container.startswith(host):
                return RouterAt(slot, container)
        raise StackError(f"{self.url} is answered by {fleet['router']}, which is no router of this stack")

    async def kill(self, container: str) -> None:
        """SIGKILL every process in a container but its init, which ends with them.

        `docker kill` would not do: Docker takes it as the operator's wish and does not restart the container.
        """
        await _run(*self._docker, "exec", container, "sh", "-c", "kill -9 -1", may_fail=True)

    async def restarts(self, container: str) -> int:
        """How often Docker has restarted a container."""
        return int(await _run(*self._docker, "inspect", "--format", "{{.RestartCount}}", container))

    async def audit(self, last_s: float) -> dict[str, Any]:
        """What `evenload audit verify` says of the last so many seconds.

        Raises:
            StackError: It did not run to its end.
        """
        verify = ("audit", "verify", "--json", "--from", f"{round(last_s)}s")
        text = await _run(*self._compose, "run", "--rm", "-T", "audit", *verify, may_fail=True, limit_s=AUDIT_S)
        try:
            report: dict[str, Any] = json.loads(text)
        except ValueError:
            raise StackError(
                f"the audit gave no report; try: docker compose run --rm audit {' '.join(verify)}"
            ) from None
        return report

    async def serves(self, container: str) -> bool:
        """Whether the proxy gives requests to a router again."""
        for _ in range(LOOKS):
            _, fleet = await self._fleet()
            if container.startswith(str(fleet["router"])[:HOST_NAME_LENGTH]):
                return True
        return False

    async def snapshot_age_ms(self) -> float:
        """Age of the oldest partition's newest snapshot, as one of the routers sees it; infinite if it has none."""
        _, fleet = await self._fleet()
        age_ms = fleet["snapshot_age_ms"]
        return float("inf") if age_ms is None else float(age_ms)

    async def _fleet(self) -> tuple[str, dict[str, Any]]:
        try:
            reply: Reply = await probe(self.url, "GET", "/fleet")
        except OSError as error:
            raise StackError(
                f"nothing answers at {self.url} ({error}); start the stack with: make compose-up"
            ) from None
        slots = [value for name, value in reply.headers if name.lower().encode() == ROUTER_HEADER]
        if reply.status != 200 or not slots:
            raise StackError(f"{self.url}/fleet answered {reply.status}; is it the stack's proxy? See: make compose-up")
        return slots[0], json.loads(reply.body)


async def seen(condition: Callable[[], Awaitable[bool]], now_s: Callable[[], float], limit_s: float) -> float | None:
    """Wait for a condition; return when it held first, None if it did not within the limit."""
    try:
        async with asyncio.timeout(limit_s):
            while not await condition():  # noqa: ASYNC110 - what is waited for knows nothing of events
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        return None
    return now_s()


async def fresh(stack: Stack) -> bool:
    """Whether the snapshots of all partitions are fresh."""
    return await stack.snapshot_age_ms() <= FRESH_MS


async def _run(*words: str, may_fail: bool = False, limit_s: float = COMMAND_S) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        raise StackError(f"{words[0]} is not installed; COMPOSE and DOCKER name other commands") from None
    try:
        async with asyncio.timeout(limit_s):
            out, error = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise StackError(f"no end of {shlex.join(words)} within {limit_s:.0f} s") from None
    if process.returncode and not may_fail:
        raise StackError(f"{shlex.join(words)}: {error.decode(errors='replace').strip()}")
    return out.decode()
