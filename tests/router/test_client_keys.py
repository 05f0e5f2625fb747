"""Client keys and their rates, over real sockets."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenload.api.keys import ClientKeys, Key, TokenBucket, new_key, read_keys
from evenload.cli.app import main
from evenload.router.fakes import post
from evenload.settings import SettingsError
from tests.router.stage import GOOD, GOOD_BODY, STREAM, fleet

HASH = hashlib.sha256(b"ev-secret").hexdigest()
KEY = (b"authorization", b"Bearer ev-secret")


def file(folder: Path, *lines: str) -> dict[str, Any]:
    """Settings of a router with these keys."""
    path = folder / "keys"
    path.write_text("\n".join(lines), encoding="utf-8")
    return {"keys_file": str(path)}


async def test_only_known_keys_are_served_in_either_header(tmp_path: Path) -> None:
    async with fleet(GOOD, router=file(tmp_path, "# of the team", "", f"team:{HASH}")) as f:
        for header in (KEY, (b"authorization", b"bearer  ev-secret"), (b"x-api-key", b"ev-secret")):
            assert (await post(f.url, STREAM, header)).body == GOOD_BODY
        refused = [
            (),
            ((b"authorization", b"Bearer ev-secre"),),
            ((b"authorization", b"Bearer ev-secret2"),),
            ((b"authorization", b"Bearer " + HASH.encode()),),  # the hash is no key
            ((b"authorization", b"Basic ev-secret"),),
            ((b"x-api-key", b""),),
        ]
        for headers in refused:
            got = await post(f.url, STREAM, *headers)
            assert (got.status, got.error["code"], got.error["type"]) == (
                401,
                "invalid_api_key",
                "invalid_request_error",
            )
            assert got.headers[b"www-authenticate"] == b"Bearer"
            assert b"ev-secre" not in got.body
        assert f.requests("a") == 3
        assert not any("authorization" in str(seen.headers) for seen in f.engines["a"].requests)
        samples = await f.metrics()
        assert samples['evenload_router_key_requests_total{end="passed",key="team"}'] == 3
        assert samples["evenload_router_unauthorized_total"] == len(refused)


async def test_all_of_v1_wants_a_key_and_probes_do_not(tmp_path: Path) -> None:
    async with fleet(GOOD, router=file(tmp_path, f"team:{HASH}")) as f:
        for path, wanted in (("/v1/models", 401), ("/v1/nothing", 401), ("/healthz", 200), ("/metrics", 200)):
            assert (await post(f.url, b"", path=path, method="GET")).status == wanted
        assert (await post(f.url, b"", KEY, path="/v1/models", method="GET")).status == 200


async def test_anthropics_clients_are_refused_in_their_own_form_on_every_path(tmp_path: Path) -> None:
    async with fleet(GOOD, router=file(tmp_path, f"team:{HASH}")) as f:
        for method, path in (("POST", "/v1/messages"), ("GET", "/v1/messages/batches"), ("GET", "/v1/models")):
            got = await post(f.url, b"{}", (b"anthropic-version", b"2023-06-01"), path=path, method=method)
            told = json.loads(got.body)
            assert (got.status, told["error"]["type"]) == (401, "authentication_error")
            assert (told["error"]["code"], got.headers[b"request-id"]) == (
                "invalid_api_key",
                told["request_id"].encode(),
            )
        for path in ("/rerank", "/tokenize", "/pooling", "/classify"):  # not below /v1, and not open either
            assert (await post(f.url, STREAM, path=path)).status == 401


async def test_a_rate_is_kept_by_a_429_that_no_instance_hears_of(tmp_path: Path) -> None:
    async with fleet(GOOD, router=file(tmp_path, f"team:{HASH}:0.5:3")) as f:
        assert [(await post(f.url, STREAM, KEY)).status for _ in range(3)] == [200, 200, 200]
        got = await post(f.url, STREAM, KEY)
        assert (got.status, got.error["code"]) == (429, "rate_limited")
        assert got.headers[b"retry-after"] in (b"1", b"2")
        assert await f.outcomes("a") == {"ok": 3}
        assert (f.state("a").errors, f.state("a").saturations) == (0, 0)
        assert (await f.metrics())['evenload_router_key_requests_total{end="rate_limited",key="team"}'] == 1


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(2.0, 4.0)
    assert [bucket.take(10.0) for _ in range(4)] == [0.0] * 4
    assert bucket.take(10.0) == 0.5
    assert bucket.take(10.4) == pytest.approx(0.1)
    assert bucket.take(10.5) == 0.0
    assert bucket.take(10.5) == 0.5
    assert [bucket.take(1000.0) for _ in range(5)][-1] == 0.5  # no more than a burst is saved up


def test_new_keys_go_on_from_the_counts_and_buckets_of_those_before() -> None:
    same, other = TokenBucket(1.0, 1.0), TokenBucket(1.0, 1.0)
    before = ClientKeys([Key("a", b"1", same), Key("b", b"2", other)])
    same.take(0.0)
    before.keys[0].taken = 7
    after = ClientKeys([Key("a", b"9", TokenBucket(1.0, 1.0)), Key("b", b"2", TokenBucket(2.0, 1.0)), Key("c", b"3")])
    after.inherit(before)
    assert (after.keys[0].bucket, after.keys[0].taken) == (same, 7)  # a new key of the same client, at the same rate
    assert after.keys[1].bucket is not other


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "holds no key"),
        (["ev-secret"], "64 lower-case hex digits"),
        ([f"a b:{HASH}"], "must begin with a name"),
        ([f"a:{HASH.upper()}"], "64 lower-case hex digits"),
        ([f"a:{HASH}:x"], "a rate that is no number"),
        ([f"a:{HASH}:0"], "a rate that is no number"),
        ([f"a:{HASH}:nan"], "a rate that is no number"),
        ([f"a:{HASH}:1:0.5"], "a burst that is no number"),
        ([f"a:{HASH}:1:2:3"], "more than"),
        ([f"a:{HASH}", f"b:{HASH}"], "of line 1"),
        ([f"a:{HASH}", f"a:{HASH[::-1]}"], "of line 1"),
    ],
)
def test_a_bad_file_is_refused_with_its_line_but_not_its_words(tmp_path: Path, lines: list[str], reason: str) -> None:
    path = Path(file(tmp_path, *lines)["keys_file"])
    with pytest.raises(SettingsError) as caught:
        read_keys(path)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{len(lines)}: router.keys_file: " if lines else f"{path}: ")
    assert "secret" not in str(caught.value).replace(str(path), "")


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"router\.keys_file: cannot be read"):
        read_keys(tmp_path / "none")


INGEST_KEYS = "collector.ingest.keys_file (not set), collectors"


def test_the_command_makes_a_key_and_the_line_that_admits_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "evenload.cli.app", "keys", "new", "team", "--rate", "5", "--burst", "20"],
        env={**os.environ, "EVENLOAD_ROUTER__KEYS_FILE": "/k"},
        capture_output=True,
        text=True,
        check=True,
    )
    for where in ("router.keys_file (/k), routers", "router.admin_keys_file (not set), routers", INGEST_KEYS):
        assert where in made.stderr
    secret, line = (row.split(": ")[1].strip() for row in made.stdout.splitlines())
    keys = read_keys(Path(file(tmp_path, line)["keys_file"]))
    found = keys.identify({b"authorization": f"Bearer {secret}".encode()})
    assert (found.name, found.bucket and (found.bucket.rate_per_s, found.bucket.burst)) == ("team", (5.0, 20.0))
    assert secret not in line
    assert new_key("team")[0] != new_key("team")[0]
    for bad in (["a b"], ["team", "--rate", "0"], ["team", "--burst", "2"]):
        with pytest.raises(SystemExit) as end:
            main(["keys", "new", *bad])  # a process for each would take a second and more
        assert (end.value.code, capsys.readouterr().out) == (2, "")


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-7, 5e-324, 1e7, float("nan"), float("inf")])
def test_a_refused_rate_is_outside_the_bounds_that_the_error_names(rate: float) -> None:
    with pytest.raises(ValueError, match="rate that is no number from 1e-06 to 1e\\+06"):
        new_key("team", rate)
    assert new_key("team", 1e-6)
    assert new_key("team", 1e6)


async def test_keys_do_not_show_in_what_the_router_says_of_itself(tmp_path: Path) -> None:
    async with fleet(GOOD, router=file(tmp_path, f"team:{HASH}")) as f:
        await post(f.url, STREAM, KEY)
        for path in ("/fleet", "/metrics", "/readyz"):
            page = (await post(f.url, b"", path=path, method="GET")).body
            assert b"ev-secret" not in page
            assert HASH.encode() not in page
        assert json.loads((await post(f.url, b"", path="/fleet", method="GET")).body)["router"]
