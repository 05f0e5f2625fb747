"""A real Apache Kafka on this machine, as a child process: no Docker, no Java to install.

The data folder holds `log/` (Kafka's data), `port` (the port it had), `server.properties` (written anew at each start),
`kafka.log` (its output, bounded) and `lock` (held while it runs).
"""

import base64
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from evenload.broker import jars, ports
from evenload.broker.child import Child
from evenload.broker.errors import BrokerError, BrokerStartError, DataFolderBusyError
from evenload.broker.lock import acquire
from evenload.broker.probe import brokers_known
from evenload.broker.properties import HOST, format_properties, server_properties
from evenload.broker.secured import Secured

DEFAULT_FOLDER = Path(".evenload") / "kafka"

_LOG_LINES = 25
_POLL_S = 0.1
_LOCK_WAIT_S = 2.0  # a broker whose owner was killed a moment ago needs some milliseconds to go
_START_TRIES_MAX = 3  # another program can take a free port before Kafka does
_TAKEN = "Address already in use"


class Broker:
    """One Kafka node on 127.0.0.1 with its data in a folder that survives restarts.

    Use it as a context manager, or call `start` and `stop`. It dies with the process that started it, also on kill -9.

        with Broker("data/kafka") as broker:
            print(broker.bootstrap)
    """

    def __init__(
        self,
        folder: Path | str = DEFAULT_FOLDER,
        *,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        heap_mib: int = 256,
        start_timeout_s: float = 90.0,
        stop_grace_s: float = 15.0,
        secured: Secured | None = None,
    ) -> None:
        """Describe a broker; nothing happens before `start`.

        Args:
            folder: Data folder, made when it is missing.
            port: For clients; 0 takes the one that the folder remembers, else a free one, and remembers it.
            properties: Kafka properties that win over the defaults, such as `group.min.session.timeout.ms`.
            heap_mib: Java heap in MiB.
            start_timeout_s: Longest wait for the first answer.
            stop_grace_s: Time between SIGTERM and SIGKILL in `stop`.
            secured: More listeners, that want to know who is there; their users are those of the first start.
        """
        self._folder = Path(folder).absolute()
        self._port_wanted = port
        self._port = 0
        self._properties = dict(properties or {})
        self._heap_mib = heap_mib
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._secured = secured
        self._child: Child | None = None
        self._lock: int | None = None

    def __repr__(self) -> str:
        state = f"running pid={self._child.pid}" if self._child and self.running else "stopped"
        return f"<Broker {self._folder} port={self._port or self._port_wanted} {state}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """Address for clients, `127.0.0.1:PORT`; known from the first start on."""
        if not self._port:
            raise BrokerError("the broker's address is known once it has been started")
        return f"{HOST}:{self._port}"

    @property
    def folder(self) -> Path:
        """The data folder, absolute."""
        return self._folder

    @property
    def log_path(self) -> Path:
        """Where Kafka's own output goes."""
        return self._folder / "kafka.log"

    @property
    def running(self) -> bool:
        """Whether the process is there (it may have died by itself)."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id of the running Kafka, else None."""
        return self._child.pid if self._child is not None and self.running else None

    def start(self) -> Self:
        """Start Kafka and wait until it answers; does nothing when it runs already.

        Raises:
            BrokerPartsMissingError: jars or Java cannot be had.
            JarMismatchError: a jar is not the pinned one.
            DataFolderBusyError: another broker runs on this folder.
            BrokerStartError: the port is taken, Kafka ended early, or it gave no answer in time.
        """
        if self.running:
            return self
        self._release()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock_folder()
        try:
            self._launch(jars.java_home() / "bin" / "java", jars.kafka_jars())
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """SIGTERM and, after the grace, SIGKILL. Data stays. Does nothing when it does not run."""
        if self._child is not None and self.running:
            self._child.terminate(grace_s=self._stop_grace_s)
        self._release()

    def kill(self) -> None:
        """SIGKILL, as a crash would. Acknowledged data survives: it is in the kernel's hands already."""
        if self._child is not None and self.running:
            self._child.kill()
        self._release()

    def _release(self) -> None:
        self._child = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _lock_folder(self) -> int:
        path = self._folder / "lock"
        try:
            lock = acquire(path, timeout_s=_LOCK_WAIT_S)
        except TimeoutError:
            holder = path.read_text("ascii", "replace").strip() or "unknown"
            raise DataFolderBusyError(
                f"another broker runs on {self._folder} (started by process {holder}); "
                "stop it, use its address, or give this one another folder"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _launch(self, java: Path, classpath: list[Path]) -> None:
        command = [str(java), "-cp", os.pathsep.join(str(jar) for jar in classpath)]
        for attempt in range(1, _START_TRIES_MAX + 1):
            config = self._configure()
            self._format_once(command, config)
            self._child = self._spawn(command, "kafka.Kafka", [str(config)], heap_mib=self._heap_mib)
            try:
                self._await_answer(self._child)
            except BrokerStartError as error:
                if _TAKEN not in str(error) or attempt == _START_TRIES_MAX:
                    raise
                continue
            self._port_file.write_text(f"{self._port}\n", "ascii")
            return

    def _configure(self) -> Path:
        """Choose the ports and write server.properties."""
        self._port = self._choose_port()
        properties = server_properties(
            log_folder=self._folder / "log",
            port=self._port,
            controller_port=ports.choose_free(HOST, besides=self._port),
            overrides=self._properties,
            secured=self._secured,
        )
        path = self._folder / "server.properties"
        path.write_text(format_properties(properties), "ascii")
        return path

    @property
    def _port_file(self) -> Path:
        return self._folder / "port"

    def _choose_port(self) -> int:
        port, origin = self._port_wanted, "asked for"
        if not port and self._port_file.exists():
            port, origin = self._remembered_port(), f"remembered in {self._port_file}"
        if not port:
            return ports.choose_free(HOST)
        if not ports.is_free(HOST, port):
            raise BrokerStartError(
                f"port {port} of {HOST}, {origin}, is taken by another program: end that one or give another port"
            )
        return port

    def _remembered_port(self) -> int:
        text = self._port_file.read_text("ascii", "replace").strip()
        if not text.isdecimal() or not 0 < int(text) < 65_536:
            raise BrokerError(f"{self._port_file} should hold a port number, not {text!r}: delete it")
        return int(text)

    def _format_once(self, command: list[str], config: Path) -> None:
        if (self._folder / "log" / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode("ascii")
        # Kafka takes an id with a leading dash for an option.
        arguments = ["format", f"--cluster-id={cluster}", "-c", str(config)]
        if self._secured is not None:
            arguments += self._secured.format_arguments()
        child = self._spawn(command, "kafka.tools.StorageTool", arguments, heap_mib=64)
        self._child = child
        deadline = time.monotonic() + self._start_timeout_s
        while child.poll() is None:
            if time.monotonic() > deadline:
                raise BrokerStartError(f"formatting {self._folder} took longer than {self._start_timeout_s:.0f} s")
            time.sleep(_POLL_S)
        if child.poll() != 0:
            raise BrokerStartError(
                self._with_log(f"formatting {self._folder} failed with status {child.poll()}", child)
            )

    def _spawn(self, command: list[str], main: str, arguments: list[str], *, heap_mib: int) -> Child:
        java, *classpath = command
        return Child(
            [java, f"-Xmx{heap_mib}m", *_JAVA_FLAGS, *classpath, main, *arguments],
            log=self.log_path,
            environment=os.environ | {"LC_ALL": "C.UTF-8"},  # Java takes the encoding of file names from it
            inherit=() if self._lock is None else (self._lock,),  # the folder is busy for as long as Kafka lives
        )

    def _await_answer(self, child: Child) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            if (status := child.poll()) is not None:
                raise BrokerStartError(self._with_log(f"Kafka ended with status {status} before it answered", child))
            try:
                if brokers_known(HOST, self._port) > 0:
                    return
            except OSError:
                pass  # not listening yet
            if time.monotonic() > deadline:
                raise BrokerStartError(
                    self._with_log(f"Kafka gave no answer within {self._start_timeout_s:.0f} s", child)
                )
            time.sleep(_POLL_S)

    def _with_log(self, message: str, child: Child) -> str:
        return f"{message}; the last lines of {self.log_path}:\n{child.log_tail(_LOG_LINES)}"


_JAVA_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # starts faster and needs less memory; a laptop's load does not need the second compiler
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",  # else Java's deprecation notes fill the log that a failed start shows
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)
