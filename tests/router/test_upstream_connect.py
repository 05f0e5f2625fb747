"""How the HTTP client comes to a connection: addresses, TLS, time, and why there is none. Over real sockets."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from evenload.router.upstream import ConnectFailed, Upstream
from tests.absence import lacking
from tests.router.asking import OK, ask, ask_all


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


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


@pytest.mark.parametrize("url", ["ftp://x", "x:80", "http://", "http://user:pw@x", "http://x/?q=1"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        Upstream(url)
