"""One child process that cannot outlive its owner, with a bounded log file."""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

LOG_BYTES_MAX = 8 * 1024 * 1024  # then its tail moves to NAME.1 and it starts anew
_TAIL_BYTES = 64 * 1024
_CHECK_S = 1.0
_LEASH = Path(__file__).with_name("leash.py")


class Child:
    """A started program in a session of its own, killed by the kernel when this process ends in whatever way.

    Ctrl-C in the terminal does not reach it: its owner decides when it stops. A thread keeps watch for as long as it
    runs; it is the one that forks, since the kernel ties the child to the forking thread, not to the process.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        inherit: Sequence[int] = (),
        use_pipe: bool = sys.platform != "linux",
    ) -> None:
        """Start `argv` (an absolute program path first); descriptors in `inherit` stay open in it."""
        self._argv = list(argv)
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._environment = dict(environment)
        self._inherit = tuple(inherit)
        self._use_pipe = use_pipe
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._wake = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="child-keeper", daemon=True)
        self._keeper.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def __repr__(self) -> str:
        return f"<Child {Path(self._argv[0]).name} pid={self.pid} returncode={self.poll()}>"

    @property
    def pid(self) -> int:
        """Process id; it stays the same through the leash's exec."""
        assert self._process is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def terminate(self, *, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s` seconds; returns when it is gone."""
        self._end(signal.SIGTERM, grace_s)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._end(signal.SIGKILL, None)

    def log_tail(self, lines: int) -> str:
        """The last lines of its output, without what earlier programs left in the file."""
        return "\n".join(deque(_read_tail(self._log, after=self._log_start).splitlines(), lines))

    def _end(self, first: signal.Signals, grace_s: float | None) -> None:
        assert self._process is not None
        self._process.send_signal(first)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._wake.set()
        self._keeper.join()

    def _keep(self) -> None:
        read_end, write_end = os.pipe() if self._use_pipe else (-1, -1)
        try:
            self._process = self._spawn(read_end)
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._started.set()
            _close(read_end)
            if self._failure is not None:
                _close(write_end)
        while self._process.poll() is None:
            self._wake.wait(_CHECK_S)
            _trim(self._log)
        _close(write_end)

    def _spawn(self, read_end: int) -> subprocess.Popen[bytes]:
        leash = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), str(read_end)]
        keep = self._inherit if read_end < 0 else (*self._inherit, read_end)
        with self._log.open("ab") as output:  # append mode, so that trimming by us is safe while it writes
            return subprocess.Popen(
                [*leash, *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=keep,
                start_new_session=True,
            )


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _read_tail(path: Path, *, after: int = 0) -> str:
    with path.open("rb") as stream:
        size = path.stat().st_size
        stream.seek(max(after if after <= size else 0, size - _TAIL_BYTES))  # it shrinks when it is trimmed
        return stream.read().decode("utf-8", "replace")


def _trim(path: Path) -> None:
    if path.stat().st_size <= LOG_BYTES_MAX:
        return
    path.with_name(path.name + ".1").write_text(_read_tail(path), "utf-8")
    os.truncate(path, 0)
