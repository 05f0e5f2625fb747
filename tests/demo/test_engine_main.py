"""The command line of the simulated engines, as a real process."""

import asyncio
import signal
import socket
import sys

import pytest

from evenload.demo.engine_main import fleet_of, parser
from evenload.demo.http_probe import probe


async def start(*options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "evenload.demo.engine_server", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_it_says_where_the_engines_are_serves_and_ends_on_sigterm() -> None:
    process = await start("--port", "0", "--count", "2", "--preset", "a100-8b", "--name", "e")
    assert process.stdout is not None
    async with asyncio.timeout(30):
        lines = [(await process.stdout.readline()).decode().split() for _ in range(3)]
        assert [line[0] for line in lines] == ["e-0", "e-1", "ready"]
        assert lines[0][2] == "a100-8b"
        for line in lines[:2]:
            assert (await probe(line[1], "GET", "/health")).status == 200
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


async def test_a_port_that_is_taken_ends_it_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await start("--port", str(taken.getsockname()[1]))
        async with asyncio.timeout(30):
            _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"cannot listen: " in errors


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(["--count", "0"], "--count"), (["--speed", "-1"], "speed"), (["--provider-ttft-ms", "0"], "ttft_ms")],
)
def test_options_that_make_no_sense_are_refused(options: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fleet_of(parser().parse_args(options))
