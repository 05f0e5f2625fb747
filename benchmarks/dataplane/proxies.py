"""The proxies that are compared: how each is installed and started, and what the system says of its process.

Peers are those of `tools/peers.py`. What is not installed is reported as such in the output.
"""

import contextlib
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.pipeline.machine import rss_mb
from benchmarks.pipeline.stack import Kafka, get
from evenload.broker import ports
from tools.peers import Uninstallable, install, installed, nginx, nginx_installed

PEERS = ("nginx", "vllm-router", "sglang-router", "litellm")
OURS = ("evenload", "evenload-uvicorn")
NAMES = (*PEERS, *OURS)
START_S = 90.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_NGINX = """\
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.error crit;
events {{ worker_connections 16384; }}
http {{
  access_log off; client_max_body_size 32m; keepalive_requests 1000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engines {{ random two least_conn; {servers} keepalive 256; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    proxy_read_timeout 600s; }} }}
}}
"""
_LITELLM = """\
model_list:
{models}
litellm_settings: {{telemetry: false, num_retries: 2}}
router_settings: {{routing_strategy: least-busy}}
general_settings: {{master_key: sk-bench}}
"""
_EVENLOAD = """\
kafka: {{bootstrap: '{bootstrap}', topic_prefix: {prefix}, partitions: 4}}
router: {{port: {port}, name: {name}, server: {server}}}
pools:
- {{name: chat, models: [tiny], policy: health, instances: [{instances}]}}
"""


@dataclass(slots=True)
class Proxy:
    """One proxy under measurement, pinned to a core.

    Attributes:
        name: of NAMES, or `none` for the engine itself.
        slow: takes a twentieth of the load.
        missing: why it cannot be measured; empty when it can.
    """

    name: str
    url: str
    command: list[str] = field(default_factory=list)
    environ: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"
    slow: bool = False
    missing: str = ""
    log: Path = Path(os.devnull)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rsplit(":", 1)[1])

    def start(self, core: int) -> None:
        """Start it on one core and wait until it answers.

        Raises:
            RuntimeError: it ended, or did not answer in time; with the end of its log.
        """
        if not self.command:
            return
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["taskset", "-c", str(core), *self.command],
                env=os.environ | self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_S
        while not get(self.port, self.ready):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise RuntimeError(f"{self.name} did not start: {self.log.read_text()[-400:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @property
    def pids(self) -> list[int]:
        """Its process and their children."""
        if self._process is None:
            return []
        found = [self._process.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found

    def cpu(self) -> tuple[float, float]:
        """User and system CPU seconds so far, all its processes and threads."""
        user = system = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            user, system = user + int(fields[11]), system + int(fields[12])
        return user / _TICKS_PER_S, system / _TICKS_PER_S

    def rss_mb(self) -> float:
        """Resident memory, 10^6 bytes."""
        return sum(map(rss_mb, self.pids))


def install_peers(say: Callable[[str], None]) -> dict[str, str]:
    """Install what is missing; returns what could not be, with the reason."""
    problems: dict[str, str] = {}
    for name in PEERS:
        if _program(name) is None:
            say(f"installing {name} ...")
            try:
                nginx() if name == "nginx" else install(name)
            except Uninstallable as error:
                problems[name] = str(error)
    return problems


def _program(name: str) -> str | None:
    """Return a peer's program, or what it stands beside, if it is there."""
    folder = nginx_installed() if name == "nginx" else installed(name)
    return None if folder is None else str(folder if name == "nginx" else folder / name)


def describe(name: str, engines: list[int], kafka: Kafka, prefix: str, python: str = sys.executable) -> Proxy:
    """Return a proxy of NAMES, or `none`, before engines on these ports of loopback; not started.

    `python` runs Evenload, with the packages of this process; it must be of the same minor version.
    """
    urls = [f"http://127.0.0.1:{port}" for port in engines]
    if name == "none":
        return Proxy(name, urls[0])
    proxy = Proxy(name, f"http://127.0.0.1:{ports.choose_free('127.0.0.1')}", log=kafka.folder / f"{name}.log")
    if name in OURS:
        _ours(proxy, urls, kafka, prefix, python)
        return proxy
    program = _program(name)
    if program is None:
        proxy.missing = "not installed; `bench.py peers` installs it"
    elif name == "nginx":
        _nginx(proxy, program, urls, kafka.folder / "nginx")
    elif name == "litellm":
        _litellm(proxy, program, urls, kafka.folder)
    else:
        _rust(proxy, program, urls)
    return proxy


def _nginx(proxy: Proxy, program: str, urls: list[str], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    config = folder / "nginx.conf"
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in urls)
    config.write_text(_NGINX.format(folder=folder, servers=servers, port=proxy.port))
    proxy.command = [program, "-p", str(folder), "-c", str(config), "-e", str(folder / "start.error")]


def _litellm(proxy: Proxy, program: str, urls: list[str], folder: Path) -> None:
    engine = "- model_name: tiny\n  litellm_params: {{model: openai/tiny, api_base: {}/v1, api_key: sk-x}}"
    config = folder / "litellm.yaml"
    config.write_text(_LITELLM.format(models="\n".join(engine.format(url) for url in urls)))
    proxy.command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(proxy.port)]
    proxy.environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    proxy.ready, proxy.slow = "/health/liveliness", True


def _rust(proxy: Proxy, program: str, urls: list[str]) -> None:
    module = [str(Path(program).parent / "python"), "-m", "sglang_router.launch_router"]
    options = {
        "--host": "127.0.0.1",
        "--port": str(proxy.port),
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": str(ports.choose_free("127.0.0.1")),
        "--policy": "power_of_two",
        "--max-concurrent-requests": "8192",
        "--log-level": "error",
    }
    flat = [word for option in options.items() for word in option]
    proxy.command = [*([program] if proxy.name == "vllm-router" else module), *flat, "--worker-urls", *urls]


def _ours(proxy: Proxy, urls: list[str], kafka: Kafka, prefix: str, python: str) -> None:
    config = kafka.folder / f"{proxy.name}.yaml"
    instances = ", ".join(f"{{id: engine-{number}, url: '{url}', kind: none}}" for number, url in enumerate(urls))
    server = "uvicorn" if proxy.name.endswith("uvicorn") else "native"
    config.write_text(
        _EVENLOAD.format(
            bootstrap=kafka.bootstrap,
            prefix=prefix,
            port=proxy.port,
            name=proxy.name,
            server=server,
            instances=instances,
        )
    )
    proxy.command = [python, "-m", "evenload.cli.app", "router", "--config", str(config)]
    stdlib = sysconfig.get_path("stdlib")
    own = [entry for entry in sys.path if entry and not entry.startswith(stdlib) and not entry.endswith(".zip")]
    proxy.environ = {"PYTHONPATH": os.pathsep.join(own)}
    proxy.ready = "/readyz"
