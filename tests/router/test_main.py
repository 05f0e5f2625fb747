"""How the router's server is set up."""

import signal
from typing import Any

import pytest

from evenload.router import main
from evenload.settings import Settings


def test_no_websockets_for_their_refusals_would_log_each_query(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Server:
        interrupted = False

        def __init__(self, config: Any, *_: Any) -> None:
            seen.append(config)

        def run(self, sockets: list[Any]) -> None:
            """Serve nothing."""

    monkeypatch.setattr(main, "_Server", Server)
    monkeypatch.setattr(main, "_listen", lambda *_: None)
    monkeypatch.setattr(main, "_freeze", lambda: None)
    monkeypatch.setattr(main, "_raise_open_files", lambda: None)
    before = signal.getsignal(signal.SIGHUP)
    pool = {"name": "p", "models": ["m"], "instances": [{"url": "http://127.0.0.1:9", "kind": "none"}]}
    try:
        main.run(Settings.model_validate({"pools": [pool]}))
    finally:
        signal.signal(signal.SIGHUP, before)
    (config,) = seen
    config.load()
    assert config.ws_protocol_class is None
