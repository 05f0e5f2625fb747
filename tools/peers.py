"""Programs of others beside which Evenload is tested and measured: pinned, each on its own below `.evenload/peers`."""

import shutil
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parents[1] / ".evenload" / "peers"
PINS = {
    "vllm-router": "vllm-router==0.1.17",
    "sglang-router": "sglang-router==0.3.2",
    "litellm": "litellm[proxy]==1.108.7",
    "locust": "locust==2.47.0",
    "aiperf": "aiperf==0.13.0",
}
INSTALL_S = 1200.0


class Uninstallable(Exception):
    """A program that cannot be had here; the message says why."""


def version(name: str) -> str:
    """Return the pinned version."""
    return PINS[name].rpartition("==")[2]


def installed(name: str, parent: Path = PEERS, pins: dict[str, str] = PINS) -> Path | None:
    """Return the folder of a peer's programs if its installation came to its end, in this version and this folder."""
    own = _folder(name, parent)
    mark = own / f".{pins[name]}"
    # Programs name their interpreter by path, so an environment that was moved or copied is of no use.
    whole = mark.exists() and mark.read_text(encoding="utf-8") == str(own)
    return own / "bin" if whole else None


def install(name: str, parent: Path = PEERS, pins: dict[str, str] = PINS) -> Path:
    """Return the folder of a peer's programs, installed if it is not there.

    Raises:
        Uninstallable: it cannot be had here.
    """
    found = installed(name, parent, pins)
    if found is None:
        own = _folder(name, parent)
        found = own / "bin"
        run(name, [sys.executable, "-m", "venv", "--clear", "--without-pip", str(own)])
        # Compiling is what takes longest (aiperf: over 10 minutes), and most of it is never imported.
        options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:"]
        pip = [sys.executable, "-m", "pip", "--python", str(found / "python")]
        run(name, [*pip, "install", *options, pins[name]])
        (own / f".{pins[name]}").write_text(str(own), encoding="utf-8")
    return found


def _folder(name: str, parent: Path) -> Path:
    return (parent / name).resolve()


def nginx_installed() -> Path | None:
    """Return nginx: the system's, or else the one that was unpacked here."""
    own = PEERS / "nginx" / "usr/sbin/nginx"
    system = shutil.which("nginx")
    return Path(system) if system else own if own.exists() else None


def nginx() -> Path:
    """Return nginx, on Debian and its kin from the package's files if need be, unpacked without a service.

    Raises:
        Uninstallable: it cannot be had here.
    """
    found = nginx_installed()
    if found is None:
        folder = PEERS / "nginx"
        folder.mkdir(parents=True, exist_ok=True)
        run("nginx", ["apt-get", "download", "--quiet", "nginx"], folder)
        run("nginx", ["dpkg", "-x", str(next(folder.glob("*.deb"))), str(folder)])
        found = folder / "usr/sbin/nginx"
    return found


def run(name: str, argv: list[str], folder: Path | None = None, *, seconds: float = INSTALL_S) -> None:
    """Run one step of an installation, within its time.

    Raises:
        Uninstallable: it failed.
    """
    try:
        subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.SubprocessError) as error:
        last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise Uninstallable(f"{name} cannot be installed here: {argv[0]}: {' '.join(last)}") from error
