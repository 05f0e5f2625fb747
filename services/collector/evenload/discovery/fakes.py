"""Scripted sources of truth for tests: a name server, and an API server of Kubernetes, on free ports of loopback."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from evenload.discovery.source import Found


class Heard:
    """A listener that keeps what it heard.

    Attributes:
        reports: URLs by id, per report.
        failures: reasons.
        last: the last report in full.
    """

    def __init__(self) -> None:
        self.reports: list[dict[str, str]] = []
        self.failures: list[str] = []
        self.last: tuple[Found, ...] = ()

    def found(self, instances: Sequence[Found]) -> None:
        """Keep a report."""
        self.last = tuple(instances)
        self.reports.append({one.instance.id: one.instance.url for one in instances})

    def failed(self, reason: str) -> None:
        """Keep a reason."""
        self.failures.append(reason)


class NameServer:
    """Answers over UDP.

    Attributes:
        records: by (name, type), as text of a zone file without name and type; a response code instead of a list is
            answered as it is, None is not answered at all.
        ttl: of all records, in seconds.
        asked: questions, as (name, type).
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str] | dns.rcode.Rcode | None] = {}
        self.ttl = 1
        self.asked: list[tuple[str, str]] = []
        self._transport: asyncio.DatagramTransport | None = None

    @property
    def address(self) -> str:
        """`IP:port` of it."""
        assert self._transport is not None
        host, port = self._transport.get_extra_info("sockname")
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: _Answering(self), ("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._transport is not None
        self._transport.close()

    def answer(self, wire: bytes) -> bytes | None:
        """Answer one question."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        key = question.name.to_text(omit_final_dot=True), question.rdtype.name
        self.asked.append(key)
        found = self.records.get(key, [])
        if found is None:
            return None
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if isinstance(found, dns.rcode.Rcode):
            response.set_rcode(found)
        elif found:
            response.answer.append(dns.rrset.from_text(question.name, self.ttl, "IN", key[1], *found))
        return response.to_wire()


class _Answering(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        answer = self._server.answer(data)
        if answer is not None:
            self._transport.sendto(answer, addr)


class ApiServer:
    """Replays exchanges with an API server: lists and watches of EndpointSlices.

    Attributes:
        exchanges: what each request gets, in order: (status, body), or for a watch (200, list of lines); the connection
            of a watch ends with the line None, and stays open without. When they are used up requests hang.
        requests: (path, query, headers) of each.
    """

    def __init__(self, *exchanges: tuple[int, Any]) -> None:
        self.exchanges = list(exchanges)
        self.requests: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._more = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def then(self, status: int, body: Any) -> None:
        """Add an exchange."""
        self.exchanges.append((status, body))
        self._more.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._open.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        target = urlsplit(first.split(" ")[1])
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
        self.requests.append((target.path, query, headers))
        while not self.exchanges:
            self._more.clear()
            await self._more.wait()
        status, body = self.exchanges.pop(0)
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nconnection: close\r\n" % status)
        if not isinstance(body, list):
            data = json.dumps(body).encode()
            writer.write(b"content-length: %d\r\n\r\n%s" % (len(data), data))
            await writer.drain()
            return
        writer.write(b"transfer-encoding: chunked\r\n\r\n")
        for line in body:
            if line is None:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return
            data = json.dumps(line).encode() + b"\n"
            for piece in (data[: len(data) // 2], data[len(data) // 2 :]):  # an event need not come in one piece
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
        await reader.read()  # until the client goes
