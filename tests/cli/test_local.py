import os
import signal
import socket
import time
from pathlib import Path

import pytest

from evenload.cli.commands.up import pools_of
from evenload.cli.local import PortTakenError, child_environment, demand_ports, kafka, service, write_settings
from evenload.cli.stopping import unwinding
from evenload.settings import Settings, SettingsError, load_settings

EXAMPLE = Path(__file__).parents[2] / "evenload.yaml.example"


def test_written_settings_read_back_as_they_were(tmp_path: Path) -> None:
    settings = load_settings(EXAMPLE, {"router.seed": 7, "scorer.flush_ms": 50}, {})
    file = write_settings(settings, tmp_path / "new" / "up.yaml")
    assert load_settings(file, {}, {}) == settings


def test_children_do_not_get_the_variables_that_the_file_has_already(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(EXAMPLE, {}, {})
    monkeypatch.setenv("EVENLOAD_ROUTER__PORT", "1")
    monkeypatch.setenv("EVENLOAD_CONFIG", "other.yaml")
    monkeypatch.setenv("PROVIDER_A_KEY", "k")
    environment = child_environment(settings)
    assert "EVENLOAD_ROUTER__PORT" not in environment
    assert "EVENLOAD_CONFIG" not in environment
    assert environment["PROVIDER_A_KEY"] == "k"
    assert environment["PATH"] == os.environ["PATH"]


def test_children_get_the_variables_that_hold_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    security = {"protocol": "SASL_SSL", "username": "u", "password_env": "EVENLOAD_SECRET"}
    monkeypatch.setenv("EVENLOAD_SECRET", "hunter2")
    settings = Settings.model_validate({"kafka": {"security": security}})
    assert child_environment(settings)["EVENLOAD_SECRET"] == "hunter2"


def test_the_embedded_kafka_is_not_started_for_clients_that_want_tls_or_users() -> None:
    settings = Settings.model_validate({"kafka": {"security": {"protocol": "SSL"}}})
    with pytest.raises(SettingsError, match=r"kafka\.security\.protocol: .*kafka\.bootstrap"), kafka(settings):
        pass


def test_a_service_reads_the_written_file_and_a_router_has_time_to_drain(tmp_path: Path) -> None:
    spec = service("router-1", "router", Settings(), tmp_path / "up.yaml")
    assert list(spec.argv[-3:]) == ["router", "--config", str(tmp_path / "up.yaml")]
    assert spec.grace_s > Settings().router.drain_s
    assert spec.ready is not None


def test_a_port_of_another_program_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = Settings.model_validate({"router": {"port": port}})
        with pytest.raises(PortTakenError, match=rf"router\.port: 127\.0\.0\.1:{port}: Address already in use"):
            demand_ports(settings)


def test_engines_become_one_pool_that_serves_any_model_unless_told() -> None:
    values = {"engine": ["http://a:1", "http://b:1"], "model": None, "policy": None}
    (pool,) = Settings.model_validate(pools_of(values)).pools
    assert (pool.models, pool.policy) == (("*",), "predictive")
    assert [instance.id for instance in pool.instances] == ["a:1", "b:1"]
    (pool,) = Settings.model_validate(pools_of(values | {"model": ["m", "n"], "policy": "random"})).pools
    assert (pool.models, pool.policy) == (("m", "n"), "random")


def test_the_first_signal_unwinds_and_the_second_hurries() -> None:
    steps: list[str] = []

    def work() -> None:
        with unwinding(lambda: steps.append("hurry")):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                signal.pause()
            finally:
                steps.append("stopping")
                os.kill(os.getpid(), signal.SIGINT)
                until = time.monotonic() + 10
                while len(steps) < 2 and time.monotonic() < until:
                    pass
                steps.append("stopped")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["stopping", "hurry", "stopped"]


def test_sigterm_ends_with_status_0_after_unwinding() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with unwinding(lambda: None):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    with pytest.raises(SystemExit) as caught:
        work()
    assert caught.value.code == 0
    assert signal.getsignal(signal.SIGTERM) is before
