"""What the suite can start by itself: Evenload, and the peers that it is compared with, each as its users would run it.

A peer is installed when it is first asked for (`tools/peers.py`). Its settings are its defaults, save for what a
careful operator of LLM engines sets anyway; retries stay on.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenload.cli.http import answers
from evenload.cli.local import service, write_settings
from evenload.cli.supervise import ChildSpec
from evenload.schemas import __version__
from evenload.settings import Settings
from tools.peers import Uninstallable, install, nginx, version

from .engines import MODEL

SpecOf = Callable[[int, Sequence[int], Path], ChildSpec]


@dataclass(frozen=True)
class Peer:
    """Something that can be started.

    Attributes:
        title: as in the matrix, with its version.
        spec: describes the process, from its port, the engines' ports and a folder for its files.
        stop_signal: what its operators stop it by.
    """

    title: str
    spec: SpecOf
    stop_signal: signal.Signals = signal.SIGTERM


def find(name: str) -> Peer:
    """Return a peer, installed.

    Raises:
        Uninstallable: it cannot be had here, or is not known.
    """
    if name not in _FOUND_BY:
        raise Uninstallable(f"{name}: not one of {', '.join(_FOUND_BY)}")
    return _FOUND_BY[name]()


def _evenload() -> Peer:
    def spec(port: int, engines: Sequence[int], folder: Path) -> ChildSpec:
        settings = Settings.model_validate(
            {
                "kafka": {"bootstrap": "127.0.0.1:1"},  # nobody answers: a router serves without
                "pools": [
                    {
                        "name": "conformance",
                        "models": ["*"],
                        "instances": [{"url": url, "kind": "none"} for url in _urls(engines)],
                    }
                ],
                "router": {"port": port, "announce_s": 0.5},
            }
        )
        return service("evenload", "router", settings, write_settings(settings, folder / "evenload.yaml"))

    return Peer(f"Evenload {__version__}", spec)


def _vllm_router() -> Peer:
    bin_folder = install("vllm-router")

    def spec(port: int, engines: Sequence[int], folder: Path) -> ChildSpec:
        del folder
        argv = [str(bin_folder / "vllm-router"), "--port", str(port), "--policy", "power_of_two"]
        argv += ["--prometheus-port", str(port + 1), "--worker-urls", *_urls(engines)]
        return _child("vllm-router", argv, port)

    return Peer(f"vllm-router {version('vllm-router')}", spec)


def _sglang_router() -> Peer:
    bin_folder = install("sglang-router")

    def spec(port: int, engines: Sequence[int], folder: Path) -> ChildSpec:
        del folder
        argv = [str(bin_folder / "python"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
        argv += ["--port", str(port), "--policy", "power_of_two", "--prometheus-port", str(port + 1)]
        return _child("sglang", [*argv, "--worker-urls", *_urls(engines)], port)

    return Peer(f"sglang-router {version('sglang-router')}", spec)


def _litellm() -> Peer:
    bin_folder = install("litellm")

    def spec(port: int, engines: Sequence[int], folder: Path) -> ChildSpec:
        deployments = [
            {
                "model_name": MODEL,
                "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "sk-engine"},
            }
            for url in _urls(engines)
        ]
        config = folder / "litellm.json"  # JSON is YAML
        config.write_text(json.dumps({"model_list": deployments, "router_settings": {"num_retries": 2}}))
        argv = [str(bin_folder / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"
        return _child("litellm", argv, port, PATH=path, **_LITELLM_ENV)

    return Peer(f"LiteLLM {version('litellm')}", spec)


# No look-up of prices at start; and no key of its own, as for the other peers.
_LITELLM_ENV = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}

_NGINX = """\
daemon off; user root; worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/1; uwsgi_temp_path {folder}/2; scgi_temp_path {folder}/3;
  upstream engines {{ random two least_conn; {servers} keepalive 32; }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 64m;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
      proxy_next_upstream error timeout invalid_header http_500 http_502 http_503 http_504 http_429 non_idempotent;
      proxy_next_upstream_tries 3;
    }}
  }}
}}
"""


def _nginx() -> Peer:
    program = str(nginx())
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
    found = re.search(r"nginx/([\d.]+)", said)

    def spec(port: int, engines: Sequence[int], folder: Path) -> ChildSpec:
        # Without max_fails=0 one failure puts an engine aside for 10 s, and two leave nobody.
        servers = " ".join(f"server 127.0.0.1:{engine} max_fails=0;" for engine in engines)
        config = folder / "nginx.conf"
        config.write_text(_NGINX.format(folder=folder, port=port, servers=servers))
        return _child("nginx", [program, "-p", str(folder), "-e", "stderr", "-c", str(config)], port)

    return Peer(f"nginx {found[1] if found else 'of unknown version'}", spec, signal.SIGQUIT)


_FOUND_BY: dict[str, Callable[[], Peer]] = {
    "evenload": _evenload,
    "nginx": _nginx,
    "vllm-router": _vllm_router,
    "sglang-router": _sglang_router,
    "litellm": _litellm,
}
NAMES = tuple(_FOUND_BY)


def _urls(ports: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in ports]


def _child(name: str, argv: list[str], port: int, **env: str) -> ChildSpec:
    return ChildSpec(
        name,
        argv,
        env={**os.environ, **env},
        ready=lambda: answers(f"http://127.0.0.1:{port}/v1/models"),
        ready_timeout_s=120.0,
        restart=None,
    )
