import json
from pathlib import Path
from typing import Any

import pytest

from evenload.settings import Settings, backend_keys, load_settings, reference
from evenload.settings.reference import Entry, entries

ROOT = Path(__file__).parents[2]
ENTRIES = list(entries(Settings))
SHAPED = {
    "kafka.bootstrap": "a:1",
    "router.admin_listen": "a:1",
    "collector.advertise": "http://a:1",
    "collector.ingest.listen": "a:1",
}


def companions(entry: Entry) -> dict[str, str]:
    """Variables without which the one of an entry is an error."""
    if entry.key == "collector.ingest.listen":
        return {"EVENLOAD_COLLECTOR__INGEST__KEYS_FILE": "keys"}
    if not entry.key.startswith("kafka.security.") or entry.key.endswith("protocol"):
        return {}
    whole = {"PROTOCOL": "SASL_SSL", "USERNAME": "u", "PASSWORD_ENV": "P", "CERT_FILE": "c", "KEY_FILE": "k"}
    if entry.key.endswith(".password_file"):
        del whole["PASSWORD_ENV"]
    return {f"EVENLOAD_KAFKA__SECURITY__{name}": value for name, value in whole.items()}


def test_the_page_in_docs_is_in_sync_with_the_models() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference(), "run: python -m evenload.settings docs/configuration.md"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.key)
def test_every_key_is_described_and_every_number_bounded(entry: Entry) -> None:
    assert entry.description.endswith("."), entry
    if entry.kind.split()[0] in {"integer", "number", "list"}:
        assert any(sign in entry.bounds for sign in ("≤", "<", "at most")), entry
    if entry.kind.split()[0] in {"integer", "number"}:
        assert any(sign in entry.bounds for sign in ("≥", ">")), entry


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.env], ids=lambda entry: entry.key)
def test_every_key_outside_lists_can_be_set_by_the_variable_in_the_page(entry: Entry, tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.touch()
    values = {
        "list": '["http://a:1"]' if entry.key == "collector.peers" else "[]",
        "text": SHAPED.get(entry.key, "abc"),
        "path": "abc",
        "true": "False",  # "true or false"
    }
    choice = entry.kind.split("`")[1] if entry.kind.startswith("`") else None
    value = choice or values.get(entry.kind.split()[0]) or entry.default.strip("`").replace("null", "7")
    loaded: Any = load_settings(empty, {}, companions(entry) | {entry.env: value})
    for key in entry.key.split("."):
        loaded = getattr(loaded, key)
    if "." in entry.key:
        assert str(loaded) == value or (
            list(loaded) == json.loads(value) if value[0] == "[" else loaded == float(value)
        )


def test_the_example_file_loads_and_asks_for_the_providers_key() -> None:
    settings = load_settings(ROOT / "evenload.yaml.example", {}, {})
    assert [pool.name for pool in settings.pools] == ["chat", "long-context", "provider"]
    assert backend_keys(settings, {"PROVIDER_A_KEY": "k"}) == {"provider-a": "k"}
