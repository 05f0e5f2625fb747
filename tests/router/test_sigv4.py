"""Signed requests: what AWS would recompute from the bytes that arrive is what the signature says."""

import hashlib
import hmac
import json
import sys
from typing import Any

import pytest

from evenload.router.fake_wire import answer, error
from evenload.router.fakes import ScriptedUpstream, Seen, post
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


def signature_of(seen: Seen, scope: str, names: str) -> str:
    """Compute the signature from what arrived, as the public specification of Signature Version 4 says."""
    path, _, query = seen.path.decode().partition("?")
    lines = "".join(f"{name}:{seen.headers[name.encode()].decode().strip()}\n" for name in names.split(";"))
    hashed = hashlib.sha256(seen.body).hexdigest()
    canonical = "\n".join([seen.method.decode(), path, query, lines, names, hashed])
    stamp = seen.headers[b"x-amz-date"].decode()
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + SECRET.encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


def check(seen: Seen) -> None:
    kind, _, rest = seen.headers[b"authorization"].decode().partition(" ")
    fields = dict(part.split("=", 1) for part in rest.split(", "))
    credential, _, scope = fields["Credential"].partition("/")
    assert (kind, credential) == ("AWS4-HMAC-SHA256", KEY_ID)
    assert scope.split("/")[1:] == ["us-west-2", "bedrock", "aws4_request"]
    assert {"host", "x-amz-date", "x-amz-security-token"} <= set(fields["SignedHeaders"].split(";"))
    assert seen.headers[b"x-amz-security-token"] == TOKEN.encode()
    assert fields["Signature"] == signature_of(seen, scope, fields["SignedHeaders"])


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
