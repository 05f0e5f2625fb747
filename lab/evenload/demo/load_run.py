"""One run of the load generator's process, seen from the demo."""

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from evenload.cli.supervise import Child, ChildSpec
from evenload.demo.load import Result
from evenload.demo.load_client import Outcome

DRAIN_S: Final = 20.0  # for open streams after the last arrival


class LoadRun:
    """Starts the process, collects what it writes. Results come from another thread and are only ever appended.

    Attributes:
        results: What has ended so far.
        counts: The generator's own counts, once it has ended.
    """

    def __init__(
        self, name: str, arrivals: Path, model: str, routers: Sequence[str], log: Callable[[str, str], None]
    ) -> None:
        self.results: list[Result] = []
        self.counts: dict[str, float] = {}
        self._start_s: float | None = None
        self._log = log
        argv = [sys.executable, "-m", "evenload.demo.load_worker", "--arrivals", str(arrivals), "--model", model]
        for url in routers:
            argv += ["--router", url]
        ready = lambda: self._start_s is not None  # noqa: E731
        self.child = Child(ChildSpec(name, argv, ready=ready, grace_s=DRAIN_S, restart=None), self._take)

    def start(self) -> None:
        """Start sending; returns when the first arrival is near.

        Raises:
            ChildFailedError: It did not start.
        """
        self.child.start()
        self.child.wait_ready()

    @property
    def start_s(self) -> float:
        """Monotonic time of the load's start."""
        assert self._start_s is not None, "the load has not started"
        return self._start_s

    def now_s(self) -> float:
        """Seconds since the load's start: the time of arrivals, marks and samples."""
        return time.monotonic() - self.start_s

    def end(self) -> None:
        """No more arrivals; does not wait."""
        self.child.send(signal.SIGTERM)

    def drain(self) -> None:
        """No more arrivals; wait for open streams, within a bound."""
        self.child.stop()

    def abort(self) -> None:
        """End it at once."""
        self.child.stop(grace_s=0.2)

    def _take(self, name: str, line: str) -> None:
        try:
            value = json.loads(line)
        except ValueError:
            self._log(name, line)
            return
        if isinstance(value, list):
            self.results.append(_result(value))
        elif "start_s" in value:
            self._start_s = value["start_s"]
        else:
            self.counts = value


def _result(row: list[Any]) -> Result:
    at_s, ttft_ms, duration_ms, status, outcome, router, instance, tokens = row
    return Result(at_s, ttft_ms, duration_ms, status, Outcome(outcome), router, instance, tokens)
