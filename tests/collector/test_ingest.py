"""`POST /v1/telemetry` over real sockets, with a scripted Kafka."""

import asyncio
import contextlib
import gzip
import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError

from evenload.api.keys import ClientKeys, Key, Refused, TokenBucket, new_key
from evenload.broker import ports
from evenload.bus.link import Receipt, Record
from evenload.collector import door as door_module
from evenload.collector.ingest import Ingest
from evenload.collector.main import Collector
from evenload.collector.otlp import Places
from evenload.schemas import Batch, decode_batch
from evenload.settings import InstanceSettings, Settings, SettingsError
from evenload.settings.ingest import IngestSettings

INSTANCES = [
    InstanceSettings(id="a", url="http://engine-1:8000"),
    InstanceSettings(id="b", url="http://engine-2:8000"),
]
AUTHORIZED = {"authorization": "Bearer ev-secret"}


class Log:
    """What Kafka has; while `away` it takes nothing."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Batch]] = []
        self.back = asyncio.Event()
        self.back.set()

    async def write(self, partition: int, records: Callable[[], list[Record]]) -> Receipt:
        await self.back.wait()
        (record,) = records()
        self.batches.append((partition, decode_batch(record[1])))
        return Receipt(1, len(self.batches), 0)

    @property
    def written(self) -> list[tuple[str, int]]:
        return [(event.instance, batch.seq) for _, batch in self.batches for event in batch.events]


class Door:
    """An ingest that listens, and a client."""

    def __init__(self, log: Log, ingest: Ingest, url: str, session: aiohttp.ClientSession) -> None:
        self.log, self.ingest = log, ingest
        self._url, self._session = url, session

    async def post(
        self, data: object, headers: dict[str, str] | None = None, path: str = "/v1/telemetry", **options: Any
    ) -> tuple[int, Any]:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        sent = {"content-type": "application/json", **(AUTHORIZED if headers is None else headers)}
        async with self._session.post(self._url + path, data=body, headers=sent, **options) as answer:
            self.headers = answer.headers
            return answer.status, await answer.json()

    async def send(self, head: bytes, body: bytes) -> bytes:
        """Send these lines of a head as they are; returns the whole answer."""
        port = urlsplit(self._url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/telemetry HTTP/1.1\r\nhost: h\r\nconnection: close\r\n")
        writer.write(b"content-length: %d\r\n%b\r\n\r\n%b" % (len(body), head, body))
        answer = await reader.read()
        writer.close()
        return answer

    async def send_raw(self, *pieces: bytes, wait: bool = True) -> bytes:
        """Send these bytes, a moment between the pieces; returns the whole answer unless it is not waited for."""
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(self._url).port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        answer = await reader.read() if wait else b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return answer


@contextlib.asynccontextmanager
async def door(rate: TokenBucket | None = None, traces: bool = False, **settings: Any) -> AsyncIterator[Door]:
    log = Log()
    keys = ClientKeys([Key("team", hashlib.sha256(b"ev-secret").digest(), rate)])
    ingest = Ingest(
        IngestSettings.model_validate({"timeout_s": 0.2, **settings}),
        keys,
        write=log.write,
        now_ms=lambda: 1_000_000,
        partition_of={"a": 0, "b": 1}.__getitem__,
        generation_of=lambda _: 0,
        places_of=Places if traces else None,
    )
    ingest.follow(INSTANCES)
    runner = web.ServerRunner(ingest.door())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Door(log, ingest, f"http://127.0.0.1:{runner.addresses[0][1]}", session)
    finally:
        await runner.cleanup()


def report(*instances: str, **other: Any) -> dict[str, Any]:
    events = [{"type": "outcome", "instance": instance, "kind": "ok"} for instance in instances]
    return {"producer": "gateway-1", "events": events, **other}


async def test_a_report_is_written_and_counted_and_the_same_again_is_not() -> None:
    async with door() as d:
        assert await d.post(report("a", "b", "a", session="s", seq=0)) == (202, {"accepted": 3, "duplicates": 0})
        assert await d.post(report("a", "b", "a", session="s", seq=0)) == (202, {"accepted": 0, "duplicates": 3})
        assert await d.post(report("a", session="s", seq=5)) == (202, {"accepted": 1, "duplicates": 0})
        assert await d.post(report("a", session="s2", seq=0)) == (202, {"accepted": 1, "duplicates": 0})
        assert sorted(d.log.written) == [("a", 0), ("a", 0), ("a", 0), ("a", 5), ("b", 0)]
        assert (d.ingest.counts, d.ingest.events) == ({"accepted": 3, "duplicate": 1}, 5)


async def test_without_a_session_every_report_counts() -> None:
    async with door() as d:
        for _ in range(3):
            assert await d.post(report("a")) == (202, {"accepted": 1, "duplicates": 0})
        assert d.log.written == [("a", 0), ("a", 1), ("a", 2)]


async def test_who_may_not_report_is_refused_before_the_body_is_read() -> None:
    async with door() as d:
        for headers in ({}, {"authorization": "Bearer ev-other"}, {"x-api-key": ""}):
            status, answer = await d.post(b"{", headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert answer["error"].keys() == {"message", "type", "param", "code"}
            assert d.headers["www-authenticate"] == "Bearer"
        assert (await d.post(report("a"), {"x-api-key": "ev-secret"}))[0] == 202
        assert d.ingest.counts["invalid_api_key"] == 3


async def test_what_is_wrong_is_said_in_the_form_of_the_api() -> None:
    async with door(max_events=2, max_body_bytes=2000) as d:
        told = await d.post(report("a", "c"), AUTHORIZED | {"x-request-id": "mine"})
        assert told == (
            422,
            {
                "error": {
                    "message": "events[1].instance: there is no instance 'c'",
                    "type": "invalid_request_error",
                    "param": "events[1].instance",
                    "code": "invalid_report",
                },
                "request_id": "mine",
            },
        )
        for data, status, code in [
            (b"{", 400, "undecodable"),
            (report("a", "a", "a"), 413, "too_many_events"),
            (report(*"ab" * 100), 413, "request_too_large"),
        ]:
            assert [(s, a["error"]["code"]) for s, a in [await d.post(data)]] == [(status, code)]
        bomb = gzip.compress(json.dumps(report("a") | {"filler": "x" * 100_000}).encode())
        assert len(bomb) < 1000
        status, answer = await d.post(bomb, AUTHORIZED | {"content-encoding": "gzip"})
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        status, answer = await d.post(b"no gzip at all", AUTHORIZED | {"content-encoding": "gzip"})
        assert (status, answer["error"]["code"]) == (400, "undecodable")
        for encoding in ("foo", "br", "zstd", "gzip, gzip", "gzip;q=1"):
            status, answer = await d.post(report("a"), AUTHORIZED | {"content-encoding": encoding})
            assert (status, answer["error"]["code"]) == (415, "unsupported_media_type")
        status, answer = await d.post(report("a"), AUTHORIZED | {"content-type": "text/plain"})
        assert (status, answer["error"]["code"]) == (415, "unsupported_media_type")
        assert (await d.post(report("a"), path="/v1/other"))[0] == 404
        assert d.log.written == []


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "deflate", "identity", ""])
async def test_bodies_may_be_compressed_in_the_usual_ways(encoding: str) -> None:
    raw = json.dumps(report("a")).encode()
    squeezed = {"deflate": zlib.compress(raw), "identity": raw, "": raw}.get(encoding) or gzip.compress(raw)
    async with door() as d:
        headers = AUTHORIZED | {"content-encoding": encoding}
        assert await d.post(squeezed, headers) == (202, {"accepted": 1, "duplicates": 0})
        if squeezed != raw:
            status, answer = await d.post(squeezed[:-12], headers)
            assert (status, answer["error"]["code"]) == (400, "undecodable")
        assert len(d.log.written) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"no HTTP at all\r\n\r\n",
        b"POST /v1/telemetry HTTP/9.9\r\n\r\n",
        b"POST /v1/telemetry HTTP/1.1\r\nhost: h\r\nno colon\r\n\r\n",
        b"POST /v1/telemetry HTTP/1.1\r\nhost: h\r\nx: %b\r\n\r\n" % (b"y" * 10_000),
        b"POST /v1/telemetry HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_told_in_the_form_of_the_api_and_fills_no_log(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with door() as d:
        for _ in range(20):
            answer = await d.send_raw(raw)
            assert answer.split(b" ", 2)[1] == b"400"
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
        assert d.ingest.counts == {"invalid_http": 20}
        assert await d.post(report("a")) == (202, {"accepted": 1, "duplicates": 0})
    lines = [(record.levelname, record.exc_info) for record in caplog.records]
    assert lines in ([], [("WARNING", None)])


async def test_a_body_that_breaks_off_in_its_frames_or_its_compression_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "BODY_S", 0.3)
    head = b"POST /v1/telemetry HTTP/1.1\r\nhost: h\r\nx-api-key: ev-secret\r\ncontent-type: application/json\r\n"
    async with door() as d:
        answer = await d.send_raw(head + b"transfer-encoding: chunked\r\n\r\n", b'5\r\n{"pro\r\n', b"ZZ\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")
        answer = await d.send_raw(head + b"content-length: 40\r\n\r\n", b"{")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
        await d.send_raw(head + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\n", b"gzip", wait=False)
        await d.send_raw(head + b"content-length: 40\r\n\r\n", b"{", wait=False)
        assert await d.post(report("a")) == (202, {"accepted": 1, "duplicates": 0})
    assert "Traceback" not in caplog.text
    assert [record.levelname for record in caplog.records if record.levelname != "INFO"] in ([], ["WARNING"])


async def test_a_sender_that_asks_first_is_told_to_go_on() -> None:
    """As curl does with a body of more than a kilobyte."""
    async with door() as d:
        body = json.dumps(report("a")).encode()
        key = b"x-api-key: ev-secret\r\ncontent-type: application/json\r\nexpect: 100-continue"
        answer = await d.send(key, body)
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 ")
        refused = await d.send(b"expect: 100-continue", body)
        assert refused.startswith(b"HTTP/1.1 401 "), "without a key nobody asks for the body"


async def test_headers_may_have_any_bytes() -> None:
    async with door() as d:
        body = json.dumps(report("a")).encode()
        for line, status in (
            (b"x-other: \xff", b"202"),
            (b"x-request-id: \xff", b"202"),
            (b"x-api-key: \xff", b"401"),
            (b"content-encoding: \xff", b"415"),
        ):
            key = b"" if status == b"401" else b"authorization: Bearer ev-secret\r\n"
            assert (await d.send(key + b"content-type: application/json; x=\xff\r\n" + line, body)).startswith(
                b"HTTP/1.1 " + status
            )
        assert (await d.send(b"x-api-key: ev-secret\r\ncontent-type: application/json; x=\xff", b"{")).startswith(
            b"HTTP/1.1 400"
        )


async def test_a_key_with_a_rate_is_held_to_it() -> None:
    async with door(TokenBucket(0.1, 1)) as d:
        assert (await d.post(report("a")))[0] == 202
        status, answer = await d.post(report("a"))
        assert (status, answer["error"]["code"]) == (429, "rate_limited")
        assert int(d.headers["retry-after"]) in (9, 10)


async def test_while_kafka_is_away_the_answer_is_503_and_the_report_can_be_sent_again() -> None:
    async with door() as d:
        d.log.back.clear()
        status, answer = await d.post(report("a", session="s", seq=0))
        assert (status, answer["error"]["code"], d.headers["retry-after"]) == (503, "kafka_unavailable", "1")
        d.log.back.set()
        assert await d.post(report("a", session="s", seq=0)) == (202, {"accepted": 1, "duplicates": 0})


async def test_reports_of_one_sender_keep_their_order_and_too_many_at_once_are_refused() -> None:
    async with door(max_concurrent=2, timeout_s=5) as d:
        d.log.back.clear()
        waiting = [asyncio.create_task(d.post(report("a", session="s", seq=seq))) for seq in (0, 1)]
        async with asyncio.timeout(5):
            while d.ingest._under_way < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        status, answer = await d.post(report("a", session="other", seq=0))
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        d.log.back.set()
        assert [status for status, _ in await asyncio.gather(*waiting)] == [202, 202]
        sequences = [seq for _, seq in d.log.written]
        assert sequences == sorted(sequences)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_only_post_is_served(method: str) -> None:
    async with door() as d, d._session.request(method, f"{d._url}/v1/telemetry") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (405, "method_not_allowed")


def settings_with(folder: Path, listen: str) -> Settings:
    secret, line = new_key("team")
    (folder / "keys").write_text(line)
    (folder / "secret").write_text(secret)
    pool = {"name": "p", "models": ["*"], "instances": [{"id": "a", "url": "http://127.0.0.1:1", "kind": "none"}]}
    ingest = {"listen": listen, "keys_file": str(folder / "keys"), "timeout_s": 0.3}
    return Settings.model_validate(
        {"kafka": {"bootstrap": "127.0.0.1:1"}, "pools": [pool], "collector": {"ingest": ingest}}
    )


async def test_a_collector_without_kafka_answers_503_and_goes_on(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{ports.choose_free('127.0.0.1')}"
    collector, stop = Collector(settings_with(tmp_path, listen)), asyncio.Event()
    collector.probes.port = 0
    running = asyncio.create_task(collector.run(stop))
    headers = {"x-api-key": (tmp_path / "secret").read_text()}
    try:
        async with aiohttp.ClientSession(f"http://{listen}", headers=headers) as session, asyncio.timeout(10):
            for attempt in range(3):
                while True:
                    try:
                        async with session.post("/v1/telemetry", json=report("a", session="s", seq=0)) as answer:
                            said = await answer.json()
                            break
                    except aiohttp.ClientConnectorError:
                        assert attempt == 0, "it stopped listening"
                        await asyncio.sleep(0.02)
                assert (answer.status, said["error"]["code"]) == (503, "kafka_unavailable")
        collector.emitter.buffered = 0  # nobody will take it, so do not wait for it at the end
    finally:
        stop.set()
        await running


def test_a_reload_takes_other_keys_or_nothing(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, "127.0.0.1:1")
    collector = Collector(settings)
    assert collector.ingest is not None

    def admitted(secret: str) -> bool:
        with contextlib.suppress(Refused):
            collector.ingest._keys.identify({b"x-api-key": secret.encode()})  # type: ignore[union-attr]
            return True
        return False

    old, (new, line) = (tmp_path / "secret").read_text(), new_key("team")
    (tmp_path / "keys").write_text("nonsense")
    with pytest.raises(SettingsError, match=r"collector\.ingest\.keys_file"):
        collector.reload(settings)
    assert admitted(old)
    (tmp_path / "keys").write_text(line)
    collector.reload(settings)
    assert admitted(new)
    assert not admitted(old)


async def test_a_taken_port_is_named_with_its_key(tmp_path: Path) -> None:
    async with door() as d:
        taken = d._url.removeprefix("http://")
        collector = Collector(settings_with(tmp_path, taken))
        collector.probes.port = 0
        with pytest.raises(SettingsError, match=r"collector\.ingest\.listen: cannot listen on"):
            await collector.run(asyncio.Event())


def test_a_bad_file_of_keys_is_named_with_its_key(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, "127.0.0.1:1")
    (tmp_path / "keys").write_text("team:secret")
    with pytest.raises(SettingsError, match=r"keys:1: collector\.ingest\.keys_file: needs 64 lower-case hex digits"):
        Collector(settings)


def test_who_takes_reports_needs_keys() -> None:
    with pytest.raises(ValidationError, match="is required with listen: reports move scores"):
        Settings.model_validate({"collector": {"ingest": {"listen": "127.0.0.1:1"}}})
