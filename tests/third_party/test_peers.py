"""Peers are installed once, and again when their environment is of no use; what cannot be had is said, and why."""

import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.absence import lacking
from tools.peers import Uninstallable, install, installed

PINS = {"tiny": "tiny-peer==1"}


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    if find_spec("pip") is None:
        lacking("pip, which this environment was made without")
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def add_wheel(folder: Path) -> None:
    """Write a package with one program, which says hello."""
    with zipfile.ZipFile(folder / "tiny_peer-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_peer.py", "def main():\n    print('hello')\n")
        info = "tiny_peer-1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-peer\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny-peer = tiny_peer:main\n")
        wheel.writestr(f"{info}/RECORD", "")


def said(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip()


def test_an_installation_that_failed_or_was_moved_is_made_again(tmp_path: Path, wheels: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with pytest.raises(Uninstallable, match=r"tiny cannot be installed here: .*No matching distribution"):
        install("tiny", here, PINS)
    assert installed("tiny", here, PINS) is None, "half an environment is not one"

    add_wheel(wheels)
    assert said(install("tiny", here, PINS) / "tiny-peer") == "hello"
    assert installed("tiny", here, {"tiny": "tiny-peer==2"}) is None
    here.rename(there)
    assert installed("tiny", there, PINS) is None
    assert said(install("tiny", there, PINS) / "tiny-peer") == "hello"
    assert installed("tiny", there, PINS) == there / "tiny" / "bin"


def test_an_environment_that_is_there_is_used_also_through_a_link(tmp_path: Path, wheels: Path) -> None:
    real, links = tmp_path / "real", tmp_path / "links"
    add_wheel(wheels)
    made = install("tiny", real, PINS)
    links.mkdir()
    (links / "tiny").symlink_to(real / "tiny")
    (wheels / "tiny_peer-1-py3-none-any.whl").unlink()  # nothing could be installed again
    assert install("tiny", links, PINS) == made
