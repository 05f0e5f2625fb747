"""`evenload broker`: run the embedded Kafka until a signal ends it."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from evenload.broker.broker import DEFAULT_FOLDER, Broker
from evenload.broker.errors import BrokerError

_CHECK_S = 0.5


def run_foreground(
    folder: Path | str = DEFAULT_FOLDER,
    *,
    port: int = 0,
    properties: Mapping[str, str] | None = None,
    say: Callable[[str], object] = print,
) -> None:
    """Start a broker, say its address and folder, wait for SIGINT or SIGTERM, stop it. For the main thread.

    Args:
        folder: Data folder.
        port: For clients; 0 as in `Broker`.
        properties: Kafka properties that win over the defaults.
        say: Takes each line meant for the user.

    Raises:
        BrokerError: It did not start, or it ended by itself.
    """
    broker = Broker(folder, port=port, properties=properties)
    with _end_requested() as ended:
        say(f"starting Kafka in {broker.folder} (the first time, its jars are fetched: about half a minute)")
        try:
            broker.start()
        except BrokerError:
            if not ended.is_set():  # else the signal reached the fetching of jars as well, and that is no error
                raise
            return
        with broker:
            say(f"Kafka answers at {broker.bootstrap}, data in {broker.folder}; Ctrl-C stops it")
            while not ended.wait(_CHECK_S):
                if not broker.running:
                    raise BrokerError(f"Kafka ended by itself; see {broker.log_path}")
            say("stopping Kafka")
    say("stopped; the data stays for the next start")


@contextmanager
def _end_requested() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second signal interrupts at once."""
    ended = threading.Event()

    def note(_number: int, _frame: object) -> None:
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
