"""Signed requests: what AWS would recompute from the bytes that arrive is what the signature says."""

import asyncio
import hashlib
import hmac
import json
import sys
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from evenload.router.aws_credentials import AwsCredentials
from evenload.router.fake_wire import answer, error
from evenload.router.fakes import ScriptedUpstream, Seen, post
from evenload.router.sigv4 import Signer, with_plain_query
from evenload.router.upstreams import upstreams
from evenload.settings import Settings, SettingsError
from tests.router.stage import STREAM, replica

KEY_ID, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session-token"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }.items():
        monkeypatch.setenv(name, value)


def settings_for(*urls: str, **more: Any) -> Settings:
    given = {"preset": "bedrock", "auth": "sigv4", "region": "us-west-2", **more}
    instances = [{"id": f"b{n}", "url": f"{url}/openai/v1", **given} for n, url in enumerate(urls)]
    return Settings.model_validate(
        {
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "router": {"seed": 1},
            "collector": {"buffer_events_max": 1000},
            "pools": [{"name": "p", "models": ["tiny"], "instances": instances}],
        }
    )


def encoded(text: bytes, safe: str = "") -> str:
    return quote_from_bytes(text, safe=safe)


def signature_of(seen: Seen, scope: str, names: str) -> str:
    """Compute the signature from what arrived, as the public specification of Signature Version 4 says."""
    path, _, query = seen.path.partition(b"?")
    pairs = (pair.partition(b"=") for pair in query.split(b"&") if pair)
    plain = sorted((encoded(unquote_to_bytes(name)), encoded(unquote_to_bytes(value))) for name, _, value in pairs)
    lines = "".join(f"{name}:{' '.join(seen.headers[name.encode()].decode().split())}\n" for name in names.split(";"))
    hashed = hashlib.sha256(seen.body).hexdigest()
    asked = "&".join(f"{name}={value}" for name, value in plain)
    canonical = "\n".join([seen.method.decode(), encoded(path, safe="/"), asked, lines, names, hashed])
    stamp = seen.headers[b"x-amz-date"].decode()
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + SECRET.encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


def signature_by_botocore(seen: Seen, names: str) -> str:
    """Let botocore compute it from what arrived."""
    headers = {name: seen.headers[name.encode()].decode() for name in names.split(";")}
    url = f"https://{headers['host']}{seen.path.decode('ascii')}"
    request = AWSRequest(method=seen.method.decode(), url=url, data=seen.body, headers=headers)
    request.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(ReadOnlyCredentials(KEY_ID, SECRET, TOKEN, None), "bedrock", "us-west-2")
    found: str = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return found


def check(seen: Seen) -> None:
    kind, _, rest = seen.headers[b"authorization"].decode().partition(" ")
    fields = dict(part.split("=", 1) for part in rest.split(", "))
    credential, _, scope = fields["Credential"].partition("/")
    assert (kind, credential) == ("AWS4-HMAC-SHA256", KEY_ID)
    assert scope.split("/")[1:] == ["us-west-2", "bedrock", "aws4_request"]
    names = fields["SignedHeaders"].split(";")
    assert {"host", "x-amz-date", "x-amz-security-token"} <= set(names)
    assert all(name == "host" or name.startswith("x-amz-") for name in names), "no client's header needs a signature"
    assert seen.headers[b"x-amz-security-token"] == TOKEN.encode()
    assert fields["Signature"] == signature_of(seen, scope, fields["SignedHeaders"])
    assert fields["Signature"] == signature_by_botocore(seen, fields["SignedHeaders"])


async def test_each_attempt_is_signed_for_what_it_sends() -> None:
    failing = [error(500, "no")]
    async with ScriptedUpstream(failing) as first, ScriptedUpstream(answer("Hi")) as second:
        settings = settings_for(
            first.url, second.url, model_names={"tiny": "openai.gpt-oss-20b-1:0"}, query={"b": "1 2"}
        )
        async with replica(settings, {"b0": first, "b1": second}) as f:
            for _ in range(6):
                assert (await post(f.url, STREAM)).status == 200
        assert first.requests
        for seen in [*first.requests, *second.requests]:
            assert seen.path == b"/openai/v1/chat/completions?b=1%202"
            assert json.loads(seen.body)["model"] == "openai.gpt-oss-20b-1:0"
            check(seen)


@pytest.mark.parametrize(
    ("path", "headers", "sent"),
    [
        ("", [(b"accept", b"application/json"), (b"accept", b"text/event-stream")], b""),
        ("", [(b"user-agent", b"caf\xe9"), (b"accept-language", b"")], b""),
        ("?b=2&a=1&&c=%20%2F&d=a+b&e&a=0", [], b"?b=2&a=1&c=%20%2F&d=a%20b&e=&a=0"),
        ("?q=a~b*c'(d)!@:;%zz%c3%A9", [], b"?q=a~b%2Ac%27%28d%29%21%40%3A%3B%25zz%C3%A9"),
        ("?&", [], b""),
    ],
    ids=["twice", "not ASCII", "query", "odd query", "empty query"],
)
async def test_whatever_a_client_sends_the_signature_is_right(
    path: str, headers: list[tuple[bytes, bytes]], sent: bytes
) -> None:
    async with ScriptedUpstream(answer("Hi")) as one:
        settings = settings_for(one.url, headers={"x-amz-own": " a   b ", "x-amz-date": "yesterday"})
        async with replica(settings, {"b0": one}) as f:
            got = await post(f.url, STREAM, *headers, path="/v1/chat/completions" + path)
        assert got.status == 200
        (seen,) = one.requests
        assert seen.path == b"/openai/v1/chat/completions" + sent
        check(seen)


_octets = st.binary(max_size=40) | st.text("ab=&%+*~/?#'\u00e9 ;", max_size=40).map(str.encode)


@given(
    query=_octets,
    body=st.binary(max_size=50),
    accept=st.lists(st.binary(max_size=10), max_size=3),
    path=st.sampled_from([b"/openai/v1/chat/completions", b"/v1/rerank", b"/a%20b/p~x/v1/responses"]),
    host=st.sampled_from(["h", "h:443", "h:8000", "[::1]:443"]),
)
def test_what_is_sent_is_what_is_signed_for_any_query_and_headers(
    query: bytes, body: bytes, accept: list[bytes], path: bytes, host: str
) -> None:
    target = with_plain_query(path + b"?" + query)
    assert with_plain_query(target) == target
    signer = Signer(_signing(), "us-west-2", "bedrock")
    headers = [*((b"accept", value) for value in accept), (b"x-amz-one", b"1"), (b"x-amz-date", b"x")]
    sent = asyncio.run(signer.signed("POST", f"https://{host}", target, headers, body))
    assert [value for name, value in sent if name == b"accept"] == accept
    assert len([name for name, _ in sent if name.startswith(b"x-amz-")]) == 3, "own, date and token, once each"
    check(Seen(b"POST", target, {**dict(sent), b"host": host.encode()}, body, 1))


def _signing() -> AwsCredentials:
    made = AwsCredentials(lambda: Credentials(KEY_ID, SECRET, TOKEN))
    made.load()
    return made


def test_the_check_itself_notices_one_changed_byte() -> None:
    assert signature_of(_seen(b"{}"), "20260101/us-west-2/bedrock/aws4_request", "host;x-amz-date") != signature_of(
        _seen(b"{ }"), "20260101/us-west-2/bedrock/aws4_request", "host;x-amz-date"
    )


def _seen(body: bytes) -> Seen:
    return Seen(b"POST", b"/x", {b"host": b"h", b"x-amz-date": b"20260101T000000Z"}, body, 1)


def test_without_the_extra_the_start_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.auth", None)
    with pytest.raises(SettingsError, match=r"instances\[0\]\.auth: instance 'b0': .*evenload\[bedrock\]"):
        upstreams(settings_for("http://h"), {})


def test_without_credentials_the_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    with pytest.raises(SettingsError, match="finds no AWS credentials"):
        upstreams(settings_for("http://h"), {})
