"""SIGINT and SIGTERM for commands that own children: unwind once, hurry the second time."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(SystemExit):
    """SIGTERM came; the process ends with status 0 after everything was stopped."""


@contextmanager
def unwinding(hurry: Callable[[], None]) -> Iterator[None]:
    """Turn the first signal into an exception, so that context managers stop what they started, in order.

    A second signal must not break into that: it calls `hurry` instead.

    Args:
        hurry: Ends everything without grace; called inside a signal handler.

    Raises:
        KeyboardInterrupt: On SIGINT.
        Terminated: On SIGTERM.
    """
    first = True

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
        nonlocal first
        if not first:
            hurry()
            return
        first = False
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(0)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
