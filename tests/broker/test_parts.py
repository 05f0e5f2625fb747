import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evenload.broker import BrokerError, child, ports
from evenload.broker.child import Child
from evenload.broker.lock import acquire, exclusive
from evenload.broker.probe import brokers_known
from evenload.broker.properties import format_properties, server_properties

HOST = "127.0.0.1"


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be collected does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def start_python(code: str, log: Path, *, use_pipe: bool = False) -> Child:
    return Child([sys.executable, "-c", code], log=log, environment=os.environ, use_pipe=use_pipe)


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


def test_our_properties_win_over_the_defaults() -> None:
    properties = server_properties(
        log_folder=Path("/data"), port=1, controller_port=2, overrides={"num.partitions": "9", "log.dirs": "/x"}
    )
    assert (properties["num.partitions"], properties["log.dirs"]) == ("9", "/x")


def test_every_listener_is_on_the_loopback_address() -> None:
    properties = server_properties(log_folder=Path("/data"), port=1, controller_port=2)
    assert properties["listeners"] == "CLIENT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"


def test_a_comma_in_the_path_is_refused_since_kafka_would_split_it() -> None:
    with pytest.raises(BrokerError, match="comma"):
        server_properties(log_folder=Path("/a,b"), port=1, controller_port=2)


def test_a_properties_file_is_ascii_with_javas_escapes() -> None:
    assert format_properties({"b": "C:\\é=#", "a": "🙂"}) == "a=\\ud83d\\ude42\nb=C\\:\\\\\\u00e9\\=\\#\n"


def test_free_ports_lie_below_those_of_outgoing_connections() -> None:
    assert 20_000 <= ports.choose_free(HOST) < 32_000


def test_a_port_that_is_listened_on_is_not_free(silent_port: int) -> None:
    assert not ports.is_free(HOST, silent_port)


def test_a_lock_is_refused_while_held_and_given_afterwards(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock", timeout_s=0), pytest.raises(TimeoutError, match="locked"):
        acquire(tmp_path / "lock", timeout_s=0.1)
    with exclusive(tmp_path / "lock", timeout_s=0):
        pass


def test_a_server_that_says_nothing_is_no_kafka(silent_port: int) -> None:
    with pytest.raises(TimeoutError):
        brokers_known(HOST, silent_port, timeout_s=0.1)


def test_a_child_leads_a_session_of_its_own(tmp_path: Path) -> None:
    started = start_python("import time; time.sleep(60)", tmp_path / "log")
    try:
        wait_until(lambda: os.getsid(started.pid) == started.pid)
    finally:
        started.kill()
    assert started.poll() == -9


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    started = start_python(code, tmp_path / "log")
    wait_until(lambda: started.log_tail(1) == "deaf")
    started.terminate(grace_s=0.1)
    assert started.poll() == -9


def test_a_log_that_grows_too_large_keeps_its_tail_and_starts_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    size = child.LOG_BYTES_MAX + 1
    code = f"import time; print('x' * {size}, 'the end', flush=True); time.sleep(60)"
    started = start_python(code, log)
    try:
        wait_until(lambda: (tmp_path / "log.1").exists() and log.stat().st_size == 0)
    finally:
        started.kill()
    assert (tmp_path / "log.1").read_text().endswith("x the end\n")


def test_the_tail_of_a_log_is_the_childs_own_though_the_file_has_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier one\n")
    started = start_python("print('mine')", log)
    wait_until(lambda: started.poll() is not None)
    assert started.log_tail(10) == "mine"
    assert log.read_text() == "of an earlier one\nmine\n"


@pytest.mark.parametrize("use_pipe", [False, True])
def test_a_child_of_a_thread_that_ended_lives_on_and_dies_with_its_process(tmp_path: Path, use_pipe: bool) -> None:
    # The owner starts it in a short-lived thread, says its pid, and is killed in a way that it cannot handle.
    code = f"""
import os, pathlib, sys, threading, time
from evenload.broker.child import Child
def start():
    child = Child([sys.executable, "-c", "import time; time.sleep(60)"], log=pathlib.Path({str(tmp_path / "log")!r}),
                  environment=os.environ, use_pipe={use_pipe})
    print(child.pid, flush=True)
thread = threading.Thread(target=start)
thread.start()
thread.join()
print("joined", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert owner.stdout.readline() == "joined\n"
        assert is_alive(pid)
        owner.kill()
    wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize("use_pipe", [False, True])
def test_a_child_holds_what_it_inherits_until_it_ends(tmp_path: Path, use_pipe: bool) -> None:
    lock = acquire(tmp_path / "lock", timeout_s=0)
    started = Child(
        [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"],
        log=tmp_path / "log",
        environment=os.environ,
        inherit=[lock],
        use_pipe=use_pipe,
    )
    os.close(lock)
    wait_until(lambda: started.log_tail(1) == "up")
    with pytest.raises(TimeoutError):
        acquire(tmp_path / "lock", timeout_s=0)
    started.kill()
    os.close(acquire(tmp_path / "lock", timeout_s=2))
