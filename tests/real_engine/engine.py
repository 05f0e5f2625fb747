"""One vLLM on loopback: its process, and that of its engine core, which can die by itself."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from evenload.broker import ports
from evenload.cli.http import answers, get
from evenload.cli.supervise import Child, ChildFailedError, ChildSpec

from . import install

HOST = "127.0.0.1"
MODEL = "tiny"
START_S = 1500.0  # one or two minutes on cores of its own, ten on busy ones
SEQUENCES = 8
CORE_TITLE = "EngineCore"


class RealEngine:
    """A vLLM that is started, killed and started again on the same port.

    Attributes:
        name: also of its instance.
        url: its base address.
        options: further ones of `vllm serve`.
        starts_s: how long each start took.
    """

    def __init__(self, name: str, options: Sequence[str], logs: Path) -> None:
        self.name = name
        self.port = ports.choose_free(HOST)
        self.url = f"http://{HOST}:{self.port}"
        self.options = list(options)
        self.starts_s: list[float] = []
        self._began_s = 0.0
        logs.mkdir(parents=True, exist_ok=True)
        self._log = (logs / f"{name}.log").open("w", encoding="utf-8")
        self.child = Child(self._spec(), emit=self._write)

    def start(self) -> "RealEngine":
        """Start it; `wait` waits for it."""
        self._began_s = time.monotonic()
        self.child = Child(self._spec(), emit=self._write).start()
        return self

    def wait(self, cancelled: threading.Event | None = None) -> float:
        """Wait until it answers; returns how long that took, in seconds.

        Args:
            cancelled: ends the wait early when it is set.

        Raises:
            ChildFailedError: It did not come up; the message has its last lines.
        """
        self.child.wait_ready(cancelled)
        if not self.child.running:
            raise ChildFailedError(f"{self.name} was stopped while it started")
        self.starts_s.append(time.monotonic() - self._began_s)
        return self.starts_s[-1]

    def stop(self) -> None:
        """End it and all of its processes."""
        self.child.stop(grace_s=5.0)

    def close(self) -> None:
        """End it for good."""
        self.stop()
        self._log.close()

    def terminate(self) -> None:
        """SIGTERM to its API server, as an operator or Kubernetes does."""
        self.child.send(signal.SIGTERM)

    def kill_core(self) -> None:
        """SIGKILL to its engine core.

        Raises:
            LookupError: It has none.
        """
        os.kill(self.core_pid(), signal.SIGKILL)

    def core_pid(self) -> int:
        """Return the process id of its engine core, a child of its API server.

        Raises:
            LookupError: It has none.
        """
        parent = self.child.pid
        for child in _children(parent) if parent is not None else ():
            with suppress(OSError):
                if CORE_TITLE in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8", errors="replace"):
                    return child
        raise LookupError(f"{self.name} has no engine core")

    def page(self) -> bytes:
        """Return its `/metrics`.

        Raises:
            OSError: It does not answer.
        """
        return get(f"{self.url}/metrics", timeout_s=10)[1]

    def health(self) -> str:
        """Return what `/health` says: a status, or why there is none."""
        try:
            return str(get(f"{self.url}/health", timeout_s=3)[0])
        except TimeoutError:
            return "no answer in 3 s"
        except ConnectionRefusedError:
            return "refused"
        except OSError as error:
            return type(error).__name__

    def _write(self, _: str, line: str) -> None:
        if not self._log.closed:
            self._log.write(line + "\n")
            self._log.flush()

    def _spec(self) -> ChildSpec:
        argv = [str(install.vllm()), "serve", str(install.model()), "--served-model-name", MODEL]
        argv += ["--host", HOST, "--port", str(self.port), "--load-format", "dummy", "--dtype", "bfloat16"]
        argv += ["--max-model-len", str(install.CONTEXT_TOKENS), "--enforce-eager", "--max-num-seqs", str(SEQUENCES)]
        return ChildSpec(
            self.name,
            [*argv, *self.options],
            env=install.environment(),
            ready=lambda: answers(f"{self.url}/health"),
            ready_timeout_s=START_S,
            restart=None,
        )


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started, on Linux."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in task.read_text(encoding="ascii").split()]
    return found
