"""What a cached result depends on."""

from pathlib import Path

import pytest

from evenload.bench import digests


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the files that were digested."""
    names: set[str] = set()

    def note(files: list[Path]) -> str:
        names.update(path.name for path in files)
        return ""

    monkeypatch.setattr(digests, "_digest", note)
    return names


@pytest.mark.parametrize("name", ["policy.py", "exclusion.py", "tiers.py", "trace.py", "inputs.py", "simulation.py"])
def test_an_edit_of_what_a_run_touches_makes_cached_results_void(name: str, read: set[str]) -> None:
    digests.core_digest.__wrapped__()
    assert name in read


def test_an_edit_of_a_policy_leaves_the_results_of_others_valid(read: set[str]) -> None:
    digests.policy_digest.__wrapped__("least-connections")
    digests.core_digest.__wrapped__()
    assert "least_connections.py" in read
    assert "predictive.py" not in read
