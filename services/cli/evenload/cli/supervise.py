"""Child processes that are watched, restarted and stopped in order, and that cannot outlive their owner.

A `Child` is one program in a session of its own (Ctrl-C in the terminal does not reach it: its owner decides when it
stops). Two threads belong to it. The keeper starts it, waits for its end and starts it again, later and later; it is
the one that forks because the kernel ties the child to the forking thread (PR_SET_PDEATHSIG), so that kill -9 of the
owner ends the child too. The reader passes its output on, line by line, with its name in front.

A `Supervisor` is a list of children: started in order, stopped in reverse.

Not handled: descendants of a child that start a session of their own.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Self

from evenload.broker import leash

LINE_BYTES_MAX = 16 * 1024
TAIL_LINES_MAX = 40
POLL_S = 0.05


class ChildFailedError(Exception):
    """A child did not become ready, or ended too often; the message has its last lines."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """When an ended child is started again.

    Attributes:
        first_s: Wait before the first restart; doubles with each that follows.
        longest_s: Longest wait.
        healthy_s: A run of this length makes the next restart the first again.
        tries_max: Restarts in a row after which it is given up.
    """

    first_s: float = 0.5
    longest_s: float = 15.0
    healthy_s: float = 30.0
    tries_max: int = 8

    def delay_s(self, tries: int) -> float:
        """Wait before restart number `tries`, from 1."""
        return min(self.longest_s, self.first_s * 2.0 ** (tries - 1))


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run, and how to tell that it is ready.

    Attributes:
        name: Short; stands in front of each line of its output.
        argv: The program, its path absolute, and its arguments.
        env: The whole environment; this process's own if None.
        ready: Answers whether it is ready; called about ten times a second while that is waited for.
        ready_timeout_s: Longest wait for it.
        grace_s: Time between SIGTERM and SIGKILL.
        restart: Whether to start it again when it ends by itself; None means never.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    ready: Callable[[], bool] | None = None
    ready_timeout_s: float = 60.0
    grace_s: float = 10.0
    restart: Backoff | None = field(default_factory=Backoff)


def print_line(name: str, line: str) -> None:
    """Write a line of a child to stderr, with its name in front."""
    print(f"{name:<10}| {line}", file=sys.stderr, flush=True)


class Child:
    """One supervised program. All methods may be called from any thread."""

    def __init__(self, spec: ChildSpec, emit: Callable[[str, str], None] = print_line) -> None:
        """Describe a child; `start` starts it.

        Args:
            spec: What to run.
            emit: Takes its name and a line of output, or a line about it; called from its threads.
        """
        self.spec = spec
        self.restarts = 0
        self.returncode: int | None = None
        self.gave_up = False
        self._emit = emit
        self._lines: deque[str] = deque(maxlen=TAIL_LINES_MAX)
        # Held while a signal is sent and while the child is reaped; reentrant, since signal handlers send signals too.
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._spawned = threading.Event()
        self._failure: BaseException | None = None
        self._keeper: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Child {self.spec.name} pid={self.pid} restarts={self.restarts} returncode={self.returncode}>"

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None."""
        process = self._process
        return None if process is None else process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None

    @property
    def tail(self) -> str:
        """Its last lines of output."""
        return "\n".join(list(self._lines))

    def start(self) -> Self:
        """Start it; does nothing while it is kept running already.

        Raises:
            OSError: No process could be made. A program that is not there ends at once, with a line that says so.
        """
        if self._keeper is not None and self._keeper.is_alive():
            return self
        self._stopping.clear()
        self._spawned.clear()
        self._failure, self.gave_up = None, False
        self._keeper = threading.Thread(target=self._keep, name=f"keep-{self.spec.name}", daemon=True)
        self._keeper.start()
        self._spawned.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def wait_ready(self, cancelled: threading.Event | None = None) -> None:
        """Wait until it says that it is ready.

        Raises:
            ChildFailedError: It did not within its time, or it ended and is not started again.
        """
        deadline = time.monotonic() + self.spec.ready_timeout_s
        while self.spec.ready is not None and not (self.running and self.spec.ready()):
            if self._stopping.is_set() or (cancelled is not None and cancelled.is_set()):
                return
            if self._keeper is None or not self._keeper.is_alive():
                raise ChildFailedError(self._with_tail(f"{self.spec.name} ended with {outcome(self.returncode)}"))
            if time.monotonic() > deadline:
                raise ChildFailedError(
                    self._with_tail(f"{self.spec.name} was not ready within {self.spec.ready_timeout_s:g} s")
                )
            self._stopping.wait(2 * POLL_S)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to the program; tells whether it was there to get it."""
        with self._lock:
            if self._process is None:
                return False
            # Not Popen.send_signal: that one reaps, and then its id may belong to somebody else.
            os.kill(self._process.pid, number)
            return True

    def kill(self) -> None:
        """SIGKILL, as a crash would; it is started again if its spec says so."""
        self.send(signal.SIGKILL)

    def stop(self, grace_s: float | None = None) -> None:
        """SIGTERM and, after the grace, SIGKILL to all of its session; returns when it is gone for good."""
        self._stopping.set()
        keeper = self._keeper
        if keeper is None:
            return
        # A stopped process (SIGSTOP) would not notice SIGTERM.
        if self.send(signal.SIGTERM):
            self.send(signal.SIGCONT)
            keeper.join(self.spec.grace_s if grace_s is None else grace_s)
        self.kill()
        keeper.join()

    def stop_now(self) -> None:
        """SIGKILL, and no restart; does not wait, so that a signal handler may call it."""
        self._stopping.set()
        self.kill()

    def _keep(self) -> None:
        tries = 0
        while True:
            began = time.monotonic()
            try:
                process, reader = self._spawn()
            except BaseException as error:
                self._failure = error
                self._spawned.set()
                return
            self._spawned.set()
            self._reap(process)
            reader.join(1.0)  # a descendant that left the session may hold the pipe for ever
            if self._stopping.is_set() or self.spec.restart is None:
                return
            tries = 1 if time.monotonic() - began >= self.spec.restart.healthy_s else tries + 1
            if tries > self.spec.restart.tries_max:
                self.gave_up = True
                self._say(f"ended with {outcome(self.returncode)}; given up after {tries - 1} restarts in a row")
                return
            delay_s = self.spec.restart.delay_s(tries)
            self._say(f"ended with {outcome(self.returncode)}; starting it again in {delay_s:g} s")
            if self._stopping.wait(delay_s):
                return
            self.restarts += 1

    def _spawn(self) -> tuple[subprocess.Popen[bytes], threading.Thread]:
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), "-1", *self.spec.argv]
        process = subprocess.Popen(
            leashed if sys.platform == "linux" else list(self.spec.argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if self.spec.env is None else dict(self.spec.env),
            start_new_session=True,
        )
        self._process, self.returncode = process, None
        if self._stopping.is_set():  # `stop` came while it was being started, and found nothing to signal
            self.kill()
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        reader.start()
        return process, reader

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end, then end what is left of its session while its id cannot belong to anybody else."""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            # Nothing may be left; some systems say EPERM for a group of zombies.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            self.returncode = process.wait()
            self._process = None

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(LINE_BYTES_MAX):
                self._say(line.decode("utf-8", "replace").rstrip("\r\n"))

    def _say(self, line: str) -> None:
        self._lines.append(line)
        self._emit(self.spec.name, line)

    def _with_tail(self, message: str) -> str:
        return f"{message}; its last lines:\n{self.tail}" if self._lines else message


def outcome(returncode: int | None) -> str:
    """Say how a process ended: `status 1`, `SIGKILL`."""
    if returncode is None:
        return "no status"
    return signal.Signals(-returncode).name if returncode < 0 else f"status {returncode}"


class Supervisor:
    """Children that belong together. A context manager: leaving it stops all."""

    def __init__(self, emit: Callable[[str, str], None] = print_line) -> None:
        self.children: list[Child] = []
        self._emit = emit
        self._cancelled = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __getitem__(self, name: str) -> Child:
        """The child of that name."""
        return next(child for child in self.children if child.spec.name == name)

    def start(self, spec: ChildSpec) -> Child:
        """Start one more child; see `Child.start`."""
        if any(child.spec.name == spec.name for child in self.children):
            raise ValueError(f"there is a child named {spec.name!r} already")
        child = Child(spec, self._emit)
        self.children.append(child)
        return child.start()

    def wait_ready(self) -> None:
        """Wait until all are ready.

        Raises:
            ChildFailedError: One of them is not in time.
        """
        for child in self.children:
            child.wait_ready(self._cancelled)

    def cancel(self) -> None:
        """Make the waits return early; safe in a signal handler."""
        self._cancelled.set()

    def run_until_cancelled(self) -> None:
        """Stay until `cancel`.

        Raises:
            ChildFailedError: A child ended too often and was given up.
        """
        while not self._cancelled.wait(10 * POLL_S):
            for child in self.children:
                if child.gave_up:
                    raise ChildFailedError(f"{child.spec.name} ended too often; its last lines:\n{child.tail}")

    def stop(self) -> None:
        """Stop all, last one first, each within its grace."""
        self._cancelled.set()
        for child in reversed(self.children):
            child.stop()

    def kill(self) -> None:
        """End all at once, without grace; safe in a signal handler, and `stop` returns soon afterwards."""
        for child in self.children:
            child.stop_now()
