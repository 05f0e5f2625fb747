"""Instances from DNS, asked of a real name server over UDP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import dns.rcode

from evenload.discovery.dns_names import DnsSource
from evenload.discovery.fakes import Heard, NameServer
from evenload.settings import SourceSettings
from tests.router.stage import until

NAME = "engines.internal"
SRV = "_http._tcp.engines.internal"
TTL_S = (0.05, 0.2)
BROKEN = ("NXDOMAIN", "SERVFAIL", "REFUSED")


@contextlib.asynccontextmanager
async def asking(
    server: NameServer, ttl_s: tuple[float, float] = TTL_S, *, weighed: bool = True, **source: Any
) -> AsyncIterator[Heard]:
    heard = Heard()
    settings = SourceSettings(nameservers=(server.address,), **source)
    task = asyncio.create_task(DnsSource(settings, ttl_s, weighed=weighed).run(heard))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_each_address_of_either_family_is_an_instance() -> None:
    async with NameServer() as server:
        server.records = {(NAME, "A"): ["10.0.0.2", "10.0.0.1"], (NAME, "AAAA"): ["fd00::1"]}
        async with asking(server, dns=f"{NAME}:8000", template={"kind": "vllm"}) as heard:
            await until(lambda: heard.reports)
            assert heard.reports[0] == {
                "10.0.0.1:8000": "http://10.0.0.1:8000",
                "10.0.0.2:8000": "http://10.0.0.2:8000",
                "[fd00::1]:8000": "http://[fd00::1]:8000",
            }
            assert {one.instance.kind for one in heard.last} == {"vllm"}
            server.records[NAME, "A"] = ["10.0.0.2"]
            server.records[NAME, "AAAA"] = []
            await until(lambda: heard.reports[-1] == {"10.0.0.2:8000": "http://10.0.0.2:8000"})
            assert heard.failures == []


async def test_an_empty_or_failing_answer_keeps_what_was_found() -> None:
    async with NameServer() as server:
        server.records = {(NAME, "A"): ["10.0.0.1"]}
        async with asking(server, dns=f"{NAME}:8000") as heard:
            await until(lambda: heard.reports)
            answers: list[list[str] | dns.rcode.Rcode] = [[], *(dns.rcode.Rcode[name] for name in BROKEN)]
            for answer in answers:
                server.records = {(NAME, "A"): answer, (NAME, "AAAA"): answer}
                heard.failures.clear()
                await until(lambda: len(heard.failures) > 2)
                seen = len(heard.reports)
                await until(lambda: len(heard.failures) > 4)
                assert len(heard.reports) == seen
            assert heard.reports[-1] == {"10.0.0.1:8000": "http://10.0.0.1:8000"}
            assert NAME in heard.failures[-1]
            server.records = {(NAME, "A"): ["10.0.0.9"]}
            await until(lambda: "10.0.0.9:8000" in heard.reports[-1])


async def test_a_family_whose_server_fails_keeps_its_last_answer_beside_the_other() -> None:
    async with NameServer() as server:
        server.records = {(NAME, "A"): ["10.0.0.1"], (NAME, "AAAA"): ["fd00::1"]}
        async with asking(server, dns=f"{NAME}:8000") as heard:
            await until(lambda: heard.reports)
            server.records = {(NAME, "A"): ["10.0.0.2"], (NAME, "AAAA"): dns.rcode.Rcode.SERVFAIL}
            await until(lambda: "10.0.0.2:8000" in heard.reports[-1])
            assert heard.reports[-1].keys() == {"10.0.0.2:8000", "[fd00::1]:8000"}


async def test_the_ttl_says_when_to_ask_again_within_bounds() -> None:
    async def asked_in_half_a_second(ttl: int, ttl_s: tuple[float, float]) -> int:
        async with NameServer() as server:
            server.ttl = ttl
            server.records = {(SRV, "SRV"): ["0 0 1 a.internal."]}
            async with asking(server, ttl_s, srv=SRV):
                await until(lambda: server.asked)
                await asyncio.sleep(0.5)
                return len(server.asked)

    assert await asked_in_half_a_second(0, (0.1, 60.0)) in range(3, 7), "the floor"
    assert await asked_in_half_a_second(3600, (0.01, 0.1)) in range(3, 7), "the ceiling"
    assert await asked_in_half_a_second(30, (0.01, 60.0)) == 1, "the TTL itself"


async def test_srv_records_have_ports_priorities_and_weights() -> None:
    async with NameServer() as server:
        server.records = {(SRV, "SRV"): ["10 20 8000 a.internal.", "10 60 8001 b.internal.", "50 0 8000 c.internal."]}
        async with asking(server, srv=SRV, scheme="https") as heard:
            await until(lambda: heard.reports)
            found = {one.instance.url: (one.instance.priority, one.instance.weight) for one in heard.last}
            assert found == {
                "https://a.internal:8000": (0, 1.0),
                "https://b.internal:8001": (0, 3.0),
                "https://c.internal:8000": (1, 1.0),
            }
        async with asking(server, srv=SRV, weighed=False) as heard:
            await until(lambda: heard.reports)
            assert {one.instance.weight for one in heard.last} == {1.0}


async def test_a_name_server_that_does_not_answer_is_asked_again() -> None:
    async with NameServer() as server:
        server.records = {(NAME, "A"): None, (NAME, "AAAA"): None}
        async with asking(server, dns=f"{NAME}:8000") as heard:
            await until(lambda: heard.failures, 15)
            assert heard.failures[0].endswith("A: timed out")
            server.records = {(NAME, "A"): ["10.0.0.1"]}
            await until(lambda: heard.reports)
