import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from evenload.cli.checks import Check, check_extra, check_instances, check_ports, check_python
from evenload.settings import Settings

MODELS = json.dumps({"data": [{"id": "m"}]})
METRICS = "".join(
    f'vllm:{name}{{engine="0"}} 0\n' for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
)


@contextmanager
def engine(answers: dict[str, tuple[int, str]]) -> Iterator[str]:
    """A server with fixed answers; 404 for all else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers.get(self.path, (404, ""))
            if text == "need key" and self.headers["Authorization"] == "Bearer secret":
                status, text = 200, MODELS
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def checks_of(url: str, environ: dict[str, str] | None = None, **instance: object) -> list[Check]:
    pool = {"name": "a", "models": ["m"], "instances": [{"url": url, "id": "i", **instance}]}
    return list(check_instances(Settings.model_validate({"pools": [pool]}), environ or {}))


GOOD = {"/v1/models": (200, MODELS), "/health": (200, ""), "/metrics": (200, METRICS)}


def test_a_healthy_engine_is_ok_and_its_gauges_are_named() -> None:
    with engine(GOOD) as url:
        checks = checks_of(url)
    assert [check.status for check in checks] == ["ok", "ok", "ok"]
    assert checks[0].seen == "serves m"
    assert checks[2].seen == "vllm says running, waiting, kv_usage"


def test_the_old_name_of_the_kv_metric_is_known() -> None:
    with engine(GOOD | {"/metrics": (200, METRICS.replace("kv_cache", "gpu_cache"))}) as url:
        assert checks_of(url)[2] == Check("instance i gauges", "ok", "vllm says running, waiting, kv_usage")


@pytest.mark.parametrize(
    ("path", "answer", "at", "status", "seen"),
    [
        ("/v1/models", (200, '{"data": [{"id": "other"}]}'), 0, "fail", "serves other, not m"),
        ("/v1/models", (200, "<html>"), 0, "fail", "not in OpenAI's form"),
        ("/v1/models", (401, ""), 0, "fail", "status 401"),
        ("/health", (503, ""), 1, "fail", "status 503"),
        ("/metrics", (404, ""), 2, "warn", "status 404"),
        ("/metrics", (200, "up 1\n"), 2, "warn", "no metrics of a known engine"),
    ],
)
def test_what_is_wrong_with_an_engine_is_said(
    path: str, answer: tuple[int, str], at: int, status: str, seen: str
) -> None:
    with engine(GOOD | {path: answer}) as url:
        check = checks_of(url)[at]
    assert check.status == status
    assert seen in check.seen
    assert check.todo


def test_an_engine_that_is_not_there_is_one_failure() -> None:
    with engine({}) as url:
        pass
    (check,) = checks_of(url)
    assert (check.check, check.status) == ("instance i", "fail")


def test_a_provider_is_asked_at_its_own_path_by_its_own_names() -> None:
    names = {"m": "theirs"}
    with engine({"/api/v3/models": (200, '{"data": [{"id": "theirs"}]}')}) as url:
        (check,) = checks_of(f"{url}/api/v3", {"ARK_API_KEY": "k"}, preset="ark", model_names=names)
        (signed,) = checks_of(url, {}, preset="bedrock", auth="sigv4", region="us-west-2")
    assert (check.status, check.seen) == ("ok", "serves theirs")
    assert (signed.status, signed.seen.split(":")[0]) == ("warn", "not checked")


def test_a_provider_is_asked_with_its_key_and_not_for_gauges() -> None:
    with engine({"/v1/models": (401, "need key")}) as url:
        (check,) = checks_of(url, {"KEY_A": "secret"}, kind="none", api_key_env="KEY_A")
        without = checks_of(url, {}, kind="none", api_key_env="KEY_A")
    assert check.status == "ok"
    assert [c.check for c in without] == ["key", "instance i models"]
    assert all(c.status == "fail" for c in without)


def test_a_port_in_use_is_a_warning_that_names_the_key() -> None:
    with engine({}) as url:
        port = int(url.rpartition(":")[2])
        (check, *_) = check_ports(Settings.model_validate({"router": {"port": port}}))
    assert (check.check, check.status) == ("router.port", "warn")
    assert "router.port" in check.todo


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10), "fail"), ((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "fail")]
)
def test_only_supported_pythons_are_ok(version: tuple[int, int], status: str) -> None:
    assert check_python(version).status == status


def test_the_extras_of_the_development_environment_are_installed() -> None:
    assert [check_extra(extra).status for extra in ("router", "scorer", "collector", "lab")] == ["ok"] * 4
