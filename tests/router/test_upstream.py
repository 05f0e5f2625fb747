"""The HTTP client, over real sockets, against an upstream that does anything at byte level."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from evenload.router.connection import BUFFER_HIGH_BYTES, HEAD_BYTES_MAX
from evenload.router.fake_wire import END, SSE_HEAD, Cut, Gate, Reset, Stall, Trickle, chunk, response
from evenload.router.fakes import ScriptedUpstream
from evenload.router.shape import Shape
from evenload.router.upstream import BadResponse, ConnectFailed, Response, Upstream, UpstreamError, UpstreamReset
from evenload.settings.instance_keys import FixedKey
from tests.absence import lacking

OK = response(200, b'{"ok":true}')


async def ask(client: Upstream, body: bytes = b"{}") -> Response:
    return await client.request("POST", b"/v1/completions", [(b"content-type", b"application/json")], body)


async def ask_all(client: Upstream, body: bytes = b"{}") -> bytes:
    answer = await ask(client, body)
    try:
        return await answer.read_all(1 << 20)
    finally:
        answer.release()


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def test_a_body_goes_out_and_comes_back_byte_for_byte() -> None:
    async with ScriptedUpstream([response(200, bytes(range(256)))]) as server:
        client = Upstream(server.url)
        assert await ask_all(client, b'\x00\xff{"a": 1}') == bytes(range(256))
        assert server.requests[0].body == b'\x00\xff{"a": 1}'
        assert server.requests[0].headers[b"host"] == server.url.removeprefix("http://").encode()
        client.close()


async def test_a_connection_is_used_again_after_release() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url)
        for _ in range(5):
            await ask_all(client)
        assert (server.connections, client.idle_connections) == (1, 1)
        client.close()


async def test_the_pool_hands_out_the_connection_used_last() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url)
        first, second = await asyncio.gather(ask(client), ask(client))
        for answer in (first, second):
            await answer.read_all(100)
            answer.release()
        await ask_all(client)
        await ask_all(client)
        assert server.requests[2].connection == server.requests[3].connection
        assert server.connections == 2
        client.close()


async def test_the_pool_is_bounded() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url, idle_connections_max=2)
        await asyncio.gather(*(ask_all(client) for _ in range(6)))
        assert client.idle_connections <= 2
        client.close()


async def test_connections_idle_for_too_long_are_closed_without_traffic() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url, idle_seconds=0.05)
        await ask_all(client)
        async with asyncio.timeout(5):
            while client.idle_connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await ask_all(client)
        assert server.connections == 2
        client.close()


async def test_a_body_not_read_to_its_end_closes_the_connection() -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), Stall()]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_chunk() == b"one"
        answer.release()
        async with asyncio.timeout(5):
            while not server.aborts:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert client.idle_connections == 0


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_response_may_arrive_in_any_pieces(size: int) -> None:
    whole = SSE_HEAD + chunk(b"data: 1\n\n") + chunk(b"data: 2\n\n") + END
    async with ScriptedUpstream([Trickle(whole, size)]) as server:
        client = Upstream(server.url)
        assert await ask_all(client) == b"data: 1\n\ndata: 2\n\n"
        assert client.idle_connections == 1
        client.close()


async def test_informational_responses_are_skipped() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with ScriptedUpstream([early, OK]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert (answer.status, answer.header(b"link")) == (200, None)
        assert await answer.read_all(100) == b'{"ok":true}'
        answer.release()
        client.close()


async def test_trailers_are_dropped() -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"x"), b"0\r\nx-trailer: 1\r\n\r\n"]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_all(100) == b"x"
        assert answer.header(b"x-trailer") is None
        answer.release()
        client.close()


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with ScriptedUpstream([b"HTTP/1.1 200 OK\r\n\r\nsome", b" text", Cut()]) as server:
        client = Upstream(server.url)
        assert await ask_all(client) == b"some text"
        assert client.idle_connections == 0


async def test_no_content_needs_no_length() -> None:
    async with ScriptedUpstream([b"HTTP/1.1 204 No Content\r\n\r\n"]) as server:
        client = Upstream(server.url)
        assert await ask_all(client) == b""
        assert client.idle_connections == 1
        client.close()


@pytest.mark.parametrize(
    "script",
    [
        [b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfour", Cut()],
        [SSE_HEAD, chunk(b"four"), Cut()],
        [SSE_HEAD, b"a\r\nfour", Cut()],
        [b"HTTP/1.0 200 OK\r\n\r\nfour", Stall(0.05), Reset()],
    ],
)
async def test_an_end_before_the_end_is_a_reset_after_what_came(script: list[bytes]) -> None:
    async with ScriptedUpstream(script) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_chunk() == b"four"
        with pytest.raises(UpstreamReset) as caught:
            await answer.read_chunk()
        assert caught.value.sent_any_response
        answer.release()
        assert client.idle_connections == 0


async def test_a_close_without_a_byte_on_a_fresh_connection_is_not_repeated() -> None:
    async with ScriptedUpstream([Cut()], [OK]) as server:
        client = Upstream(server.url)
        with pytest.raises(UpstreamReset) as caught:
            await ask(client)
        assert not caught.value.sent_any_response
        assert len(server.requests) == 1


@pytest.mark.parametrize("end", [Cut(), Reset()])
async def test_a_close_without_a_byte_on_a_reused_connection_is_repeated_once_on_a_fresh_one(end: Cut) -> None:
    async with ScriptedUpstream([OK], [end], [OK]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        assert await ask_all(client) == b'{"ok":true}'
        assert [seen.connection for seen in server.requests] == [1, 1, 2]
        assert client.stale_retries == 1
        client.close()


async def test_the_repetition_is_not_repeated() -> None:
    async with ScriptedUpstream([OK], [Cut()], [Cut()], [OK]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        with pytest.raises(UpstreamReset):
            await ask_all(client)
        assert len(server.requests) == 3


async def test_a_loss_after_the_first_byte_is_never_repeated() -> None:
    async with ScriptedUpstream([OK], [b"HTTP/1.1 2", Cut()], [OK]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        with pytest.raises(UpstreamReset) as caught:
            await ask_all(client)
        assert caught.value.sent_any_response
        assert len(server.requests) == 2


async def test_a_connection_closed_while_idle_is_not_used() -> None:
    async with ScriptedUpstream([OK, Stall(0.02), Cut()]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        async with asyncio.timeout(5):
            while client.idle_connections:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await ask_all(client)
        assert client.stale_retries == 0
        client.close()


async def test_bytes_nobody_asked_for_are_never_an_answer() -> None:
    async with ScriptedUpstream([OK + response(200, b"smuggled"), Stall()]) as server:
        client = Upstream(server.url)
        assert await ask_all(client) == b'{"ok":true}'
        assert client.idle_connections == 0


async def test_bytes_that_come_while_idle_end_the_connection() -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream([OK, Gate(gate), response(408, b"late"), Stall()], [OK]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        gate.set()
        async with asyncio.timeout(5):
            while client.idle_connections:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert await ask_all(client) == b'{"ok":true}'
        client.close()


async def test_connection_close_is_obeyed() -> None:
    async with ScriptedUpstream([response(200, b"{}", ("connection", "close"))]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        assert client.idle_connections == 0


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * (HEAD_BYTES_MAX + 1),
    ],
    ids=["not http", "upgrade", "two framings", "endless head"],
)
async def test_what_is_not_http_is_a_bad_response(data: bytes) -> None:
    async with ScriptedUpstream([data, Stall()]) as server:
        client = Upstream(server.url)
        with pytest.raises(BadResponse):
            await ask(client)


async def test_a_broken_chunk_size_is_a_bad_response_after_what_came() -> None:
    async with ScriptedUpstream([SSE_HEAD + chunk(b"x") + b"zz\r\n", Stall()]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_chunk() == b"x"
        with pytest.raises(BadResponse):
            await answer.read_chunk()
        answer.release()


async def test_read_all_has_a_limit() -> None:
    async with ScriptedUpstream([response(500, b"x" * 1000)]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        with pytest.raises(BadResponse):
            await answer.read_all(999)
        answer.release()


@pytest.mark.parametrize(
    ("url", "cause"),
    [("http://127.0.0.1:{port}", "refused"), ("http://no.invalid", "dns")],
)
async def test_a_connection_that_cannot_be_made_says_why(url: str, cause: str) -> None:
    client = Upstream(url.format(port=refused_port()), connect_timeout_s=5.0)
    with pytest.raises(ConnectFailed) as caught:
        await ask(client)
    assert caught.value.cause == cause


async def test_a_server_without_tls_is_not_spoken_to_over_https() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        client = Upstream(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", connect_timeout_s=5.0)
        with pytest.raises(ConnectFailed) as caught:
            await ask(client)
        assert caught.value.cause == "tls"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        lacking("the openssl command to make a certificate")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    options = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = [
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([openssl, *options, *names], check=True, capture_output=True)
    return key, certificate


async def test_https_verifies_by_default_and_works_with_the_right_authority(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while await reader.readuntil(b"\r\n\r\n{}"):
                writer.write(OK)
        writer.close()

    async with await asyncio.start_server(tls, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectFailed) as caught:
            await ask(Upstream(url))
        assert caught.value.cause == "tls"
        trusting = Upstream(url, ssl_context=ssl.create_default_context(cafile=str(certificate)))
        for _ in range(2):
            assert await ask_all(trusting) == b'{"ok":true}'
        assert trusting.idle_connections == 1
        trusting.close()
        await asyncio.sleep(0.05)


async def test_connecting_has_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = []
        for _ in range(4):  # a full accept queue drops further handshakes
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        client = Upstream(f"http://127.0.0.1:{port}", connect_timeout_s=0.1)
        with pytest.raises(ConnectFailed) as caught:
            await ask(client)
        assert caught.value.cause == "connect_timeout"
        for filler in fillers:
            filler.close()


async def test_a_slow_reader_stops_the_upstream() -> None:
    piece = b"x" * 65536
    async with ScriptedUpstream([SSE_HEAD, *([chunk(piece)] * 800), END]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        written = -1
        while written != server.written_bytes:  # until it stands still
            written = server.written_bytes
            await asyncio.sleep(0.1)
        assert written < 16 * 1024 * 1024  # the rest of 52 MB waits; socket buffers hold some
        assert answer._connection is not None
        assert answer._connection._buffered < 2 * BUFFER_HIGH_BYTES + 65536
        total = 0
        while part := await answer.read_chunk():
            total += len(part)
        assert total == 800 * len(piece)
        answer.release()
        client.close()


async def test_a_cancelled_request_ends_the_connection() -> None:
    async with ScriptedUpstream([Stall()]) as server:
        client = Upstream(server.url)
        task = asyncio.create_task(ask(client))
        while not server.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(1):
            while not server.aborts:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("", b"/v1/completions"),
        ("/", b"/v1/completions"),
        ("/a/b", b"/a/b/v1/completions"),
        ("/x/v1", b"/x/v1/completions"),
    ],
)
async def test_the_path_prefix_of_the_base_url_is_honoured(prefix: str, path: bytes) -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url + prefix)
        await ask_all(client)
        assert server.requests[0].path == path
        client.close()


@pytest.mark.parametrize("url", ["ftp://x", "x:80", "http://", "http://user:pw@x", "http://x/?q=1"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        Upstream(url)


async def test_fixed_headers_go_with_each_request() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url, shape=Shape(key=FixedKey("of-the-instance")))
        await ask_all(client)
        assert server.requests[0].headers[b"authorization"] == b"Bearer of-the-instance"
        client.close()


async def test_a_lost_connection_drops_its_parser_which_refers_back_to_it() -> None:
    async with ScriptedUpstream([OK, Cut()]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        await answer.read_all(100)
        connection = answer._connection
        assert connection is not None
        answer.abort()
        await asyncio.sleep(0.01)
        assert connection._parser is None


def test_all_errors_have_one_base() -> None:
    assert all(issubclass(kind, UpstreamError) for kind in (ConnectFailed, UpstreamReset, BadResponse))


async def test_silence_is_counted_from_the_last_byte_and_not_while_nobody_reads() -> None:
    more = asyncio.Event()
    async with ScriptedUpstream([SSE_HEAD, chunk(b"a"), Gate(more), chunk(b"b"), Stall()]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_chunk() == b"a"
        assert [len(client.silent(2, 9)) for _ in range(4)] == [0, 0, 1, 1]
        more.set()
        assert await answer.read_chunk() == b"b"
        answer.pause()
        assert [len(client.silent(2, 9)) for _ in range(4)] == [0, 0, 0, 0]
        answer.resume()
        assert [len(client.silent(2, 9)) for _ in range(4)] == [0, 0, 1, 1]
        client.silent(2, 9)[0].give_up("gone")
        with pytest.raises(UpstreamReset, match="gone"):
            await answer.read_chunk()
        answer.release()
        assert client.silent(2, 9) == []
        client.close()


async def test_an_answer_whose_head_has_not_come_may_be_silent_for_longer() -> None:
    async with ScriptedUpstream([Stall()]) as server:
        client = Upstream(server.url)
        task = asyncio.create_task(ask(client))
        while not server.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert [len(client.silent(1, 3)) for _ in range(5)] == [0, 0, 0, 1, 1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert client.silent(1, 3) == []
