"""What a cached result depends on."""

import pytest

from evenload.bench import digests


@pytest.mark.parametrize("name", ["policy.py", "exclusion.py", "tiers.py", "trace.py", "inputs.py", "simulation.py"])
def test_an_edit_of_what_a_run_touches_makes_cached_results_void(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    monkeypatch.setattr(digests, "_digest", lambda files: str(read.update(path.name for path in files)))
    digests.core_digest.__wrapped__()
    assert name in read


def test_an_edit_of_a_policy_leaves_the_results_of_others_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    monkeypatch.setattr(digests, "_digest", lambda files: str(read.update(path.name for path in files)))
    digests.policy_digest.__wrapped__("least-connections")
    digests.core_digest.__wrapped__()
    assert "least_connections.py" in read
    assert "predictive.py" not in read
