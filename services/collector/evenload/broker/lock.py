"""Advisory locks on files (flock): they vanish with the last process that holds them, however it ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.05


def acquire(path: Path, *, timeout_s: float) -> int:
    """Lock a file exclusively and return its descriptor; closing every copy of it releases the lock.

    Raises:
        TimeoutError: somebody else holds it for longer than `timeout_s`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_POLL_S)
                continue
            os.close(descriptor)
            raise TimeoutError(f"{path} is locked by another process") from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


@contextmanager
def exclusive(path: Path, *, timeout_s: float) -> Iterator[int]:
    """Hold the lock for the length of a `with` block."""
    descriptor = acquire(path, timeout_s=timeout_s)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
