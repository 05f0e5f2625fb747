"""Real children, all of them a few lines of Python."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evenload.cli.supervise import Backoff, Child, ChildFailedError, ChildSpec, Supervisor, outcome

QUICK = Backoff(first_s=0.01, longest_s=0.05, healthy_s=60, tries_max=3)
FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", textwrap.dedent(code)]


def until(condition: Callable[[], object], limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def exists(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


@pytest.fixture
def lines() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def supervisor(lines: list[tuple[str, str]]) -> Iterator[Supervisor]:
    with Supervisor(lambda name, line: lines.append((name, line))) as supervisor:
        yield supervisor


def test_output_is_passed_on_with_the_name(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)"
    child = supervisor.start(ChildSpec("talker", python(code), restart=None))
    until(lambda: not child.running)
    until(lambda: len(lines) == 2)
    assert sorted(lines) == [("talker", "err"), ("talker", "out")]
    assert child.returncode == 0


def test_a_child_that_ends_is_started_again_and_says_so(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    child = supervisor.start(ChildSpec("router", python(FOREVER), restart=QUICK))
    first = child.pid
    until(lambda: ("router", "up") in lines)
    child.kill()
    until(lambda: lines.count(("router", "up")) == 2)
    assert child.restarts == 1
    assert child.pid != first
    assert ("router", "ended with SIGKILL; starting it again in 0.01 s") in lines


def test_a_child_that_always_ends_is_given_up(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    child = supervisor.start(ChildSpec("bad", python("print('no')\nraise SystemExit(7)"), restart=QUICK))
    with pytest.raises(ChildFailedError, match=r"(?s)bad ended too often; its last lines:.*no"):
        supervisor.run_until_cancelled()
    assert (child.restarts, child.returncode, child.gave_up) == (3, 7, True)


def test_waits_between_restarts_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.5, longest_s=3)
    assert [backoff.delay_s(tries) for tries in range(1, 6)] == [0.5, 1, 2, 3, 3]


def test_a_child_without_restart_stays_down(supervisor: Supervisor) -> None:
    child = supervisor.start(ChildSpec("once", python("raise SystemExit(3)"), restart=None))
    until(lambda: not child.running)
    assert (child.returncode, child.restarts, child.gave_up) == (3, 0, False)


def test_stop_asks_politely_first(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    code = """
    import signal, time
    def leave(*_):
        print('goodbye', flush=True)
        raise SystemExit(0)
    signal.signal(signal.SIGTERM, leave)
    print('up', flush=True)
    time.sleep(600)
    """
    child = supervisor.start(ChildSpec("polite", python(code)))
    until(lambda: ("polite", "up") in lines)
    child.stop()
    assert child.returncode == 0
    assert lines[-1] == ("polite", "goodbye")
    assert (child.running, child.restarts) == (False, 0)


def test_stop_kills_what_does_not_listen_and_what_is_frozen(
    supervisor: Supervisor, lines: list[tuple[str, str]]
) -> None:
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    deaf = supervisor.start(ChildSpec("deaf", python(code), grace_s=0.2))
    frozen = supervisor.start(ChildSpec("frozen", python(FOREVER), grace_s=20))
    until(lambda: len(lines) == 2)
    frozen.send(signal.SIGSTOP)
    deaf.stop()
    frozen.stop()
    assert deaf.returncode == -signal.SIGKILL
    assert frozen.returncode == -signal.SIGTERM


def test_stop_ends_the_descendants_too(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    code = f"""
    import subprocess, sys, time
    inner = subprocess.Popen([sys.executable, '-S', '-c', {FOREVER!r}], stdout=subprocess.DEVNULL)
    print(inner.pid, flush=True)
    time.sleep(600)
    """
    child = supervisor.start(ChildSpec("parent", python(code)))
    until(lambda: lines)
    inner = int(lines[0][1])
    assert exists(inner)
    child.stop()
    until(lambda: not exists(inner))


def test_a_stopped_child_can_be_started_again(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    child = supervisor.start(ChildSpec("again", python(FOREVER)))
    until(lambda: len(lines) == 1)
    child.stop()
    child.start()
    until(lambda: len(lines) == 2)
    assert child.running


def test_stop_during_the_wait_for_a_restart_returns_at_once(
    supervisor: Supervisor, lines: list[tuple[str, str]]
) -> None:
    slow = Backoff(first_s=600, longest_s=600)
    child = supervisor.start(ChildSpec("slow", python("raise SystemExit(1)"), restart=slow))
    until(lambda: ("slow", "ended with status 1; starting it again in 600 s") in lines)
    child.stop()
    assert not child.running


def test_children_are_stopped_in_reverse_order(lines: list[tuple[str, str]]) -> None:
    code = """
    import signal, time
    def leave(*_):
        print('goodbye', flush=True)
        raise SystemExit(0)
    signal.signal(signal.SIGTERM, leave)
    print('up', flush=True)
    time.sleep(600)
    """
    with Supervisor(lambda name, line: lines.append((name, line))) as supervisor:
        for name in ("a", "b", "c"):
            supervisor.start(ChildSpec(name, python(code)))
        until(lambda: len(lines) == 3)
    assert [name for name, line in lines if line == "goodbye"] == ["c", "b", "a"]


def test_readiness_is_waited_for(supervisor: Supervisor, tmp_path: Path) -> None:
    sign = tmp_path / "ready"
    code = f"import time, pathlib\ntime.sleep(0.1)\npathlib.Path({str(sign)!r}).touch()\ntime.sleep(600)"
    supervisor.start(ChildSpec("server", python(code), ready=sign.exists))
    supervisor.wait_ready()
    assert sign.exists()


def test_a_child_that_is_never_ready_fails_with_its_last_lines(
    supervisor: Supervisor, lines: list[tuple[str, str]]
) -> None:
    supervisor.start(ChildSpec("slow", python(FOREVER), ready=lambda: False, ready_timeout_s=0.5))
    until(lambda: lines)
    with pytest.raises(ChildFailedError, match=r"(?s)slow was not ready within 0\.5 s; its last lines:.up"):
        supervisor.wait_ready()


def test_a_child_that_ends_before_it_is_ready_fails_at_once(supervisor: Supervisor) -> None:
    code = "print('no such option')\nraise SystemExit(2)"
    supervisor.start(ChildSpec("typo", python(code), ready=lambda: False, restart=None))
    with pytest.raises(ChildFailedError, match=r"(?s)typo ended with status 2.*no such option"):
        supervisor.wait_ready()


def test_cancel_ends_the_wait_for_readiness(supervisor: Supervisor) -> None:
    supervisor.start(ChildSpec("slow", python(FOREVER), ready=lambda: False, ready_timeout_s=600))
    threading.Timer(0.1, supervisor.cancel).start()
    supervisor.wait_ready()
    supervisor.run_until_cancelled()


def test_a_program_that_is_not_there_says_so(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    child = supervisor.start(ChildSpec("ghost", ["/nowhere/at/all"], restart=None))
    until(lambda: not child.running)
    until(lambda: any("No such file" in line for _, line in lines))


def test_a_name_is_taken_once(supervisor: Supervisor) -> None:
    supervisor.start(ChildSpec("a", python(FOREVER)))
    with pytest.raises(ValueError, match="named 'a' already"):
        supervisor.start(ChildSpec("a", python(FOREVER)))


def test_an_endless_line_is_passed_on_in_pieces(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    supervisor.start(ChildSpec("long", python("print('x' * 100_000)"), restart=None))
    until(lambda: sum(len(line) for _, line in lines) == 100_000)
    assert len(lines) == 7


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_no_child_outlives_an_owner_that_is_killed() -> None:
    code = f"""
    import time
    from evenload.cli.supervise import Child, ChildSpec
    child = Child(ChildSpec("orphan", {python(FOREVER)!r}), lambda name, line: print(child.pid, flush=True))
    child.start()
    time.sleep(600)
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        orphan = int(owner.stdout.readline())
        assert exists(orphan)
    finally:
        owner.kill()
        owner.communicate()
    until(lambda: not exists(orphan))


def test_sigkill_without_restart_keeps_the_child_down(supervisor: Supervisor, lines: list[tuple[str, str]]) -> None:
    child = supervisor.start(ChildSpec("now", python(FOREVER), restart=QUICK))
    until(lambda: lines)
    pid = child.pid
    assert pid is not None
    supervisor.kill()
    until(lambda: not child.running)
    assert not exists(pid)
    assert child.restarts == 0


def test_a_signal_to_a_child_that_is_gone_goes_nowhere(supervisor: Supervisor) -> None:
    child = supervisor.start(ChildSpec("gone", python(""), restart=None))
    until(lambda: not child.running)
    assert child.send(signal.SIGTERM) is False
    assert child.pid is None


@pytest.mark.parametrize(("code", "words"), [(0, "status 0"), (-9, "SIGKILL"), (None, "no status")])
def test_outcomes_are_named(code: int | None, words: str) -> None:
    assert outcome(code) == words


def test_the_child_is_not_in_our_session(supervisor: Supervisor) -> None:
    child = Child(ChildSpec("own", python(FOREVER)), lambda name, line: None).start()
    try:
        assert child.pid is not None
        assert os.getsid(child.pid) == child.pid
    finally:
        child.stop()
