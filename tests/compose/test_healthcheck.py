import asyncio
import sys
from pathlib import Path

from evenload.collector.probes import ProbeServer, Reply

SCRIPT = Path(__file__).parents[2] / "deploy/healthcheck.py"
PAGES = {
    "/readyz": lambda: Reply(200, "text/plain", b"ready\n"),
    "/late": lambda: Reply(503, "text/plain", b"recovering\n"),
}


async def ask(port: int, path: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-IS", str(SCRIPT), str(port), path, stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    return process.returncode, error.decode().strip()


async def test_it_passes_only_on_200_and_says_what_it_got_else() -> None:
    server = ProbeServer("127.0.0.1", 0, PAGES)
    await server.start()
    try:
        assert await ask(server.port, "/readyz") == (0, "")
        assert await ask(server.port, "/late") == (1, "503 recovering")
    finally:
        await server.close()
    code, said = await ask(server.port, "/readyz")
    assert code == 1
    assert said.startswith("no answer: ConnectionRefusedError")
