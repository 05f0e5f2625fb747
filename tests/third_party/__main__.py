"""Clients and load tools of others through a real router before real engines of others: `make third-party`.

Two llmock servers are the engines, Evenload runs without Kafka, and each tool is installed, pinned, below
`.evenload/peers`. What came out goes, as a table, between the marks of docs/conformance.md. What cannot be installed
here is said to be so; what fails ends the command with 1.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload.broker import ports
from evenload.cli.http import answers
from evenload.cli.local import service, write_settings
from evenload.cli.supervise import Child, ChildSpec
from evenload.settings import Settings
from tools.peers import PEERS, Uninstallable, install, run, version

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "conformance.md"
BEGIN, END = "<!-- third parties: made by make third-party -->", "<!-- end of third parties -->"
OPENAI, ANTHROPIC = "6.49.0", "1.14.0"
LOCUST_USERS, LOCUST_S = 8, 15
AIPERF_CLIENTS, AIPERF_REQUESTS = 4, 100
TOOL_S = 300.0


@dataclass(frozen=True)
class Outcome:
    """What a tool did.

    Attributes:
        ended: "ok", "failed", or "cannot be installed here".
        seen: in one line.
    """

    ended: str
    seen: str


def npm_openai(url: str, folder: Path) -> str:
    """Run OpenAI's npm client."""
    del folder
    return _npm(url, "openai")


def npm_anthropic(url: str, folder: Path) -> str:
    """Run Anthropic's npm client."""
    del folder
    return _npm(url, "anthropic")


def _npm(url: str, whose: str) -> str:
    own = PEERS / "npm"
    own.mkdir(parents=True, exist_ok=True)
    packages = [f"openai@{OPENAI}", f"@anthropic-ai/sdk@{ANTHROPIC}"]
    run("npm", ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(own), *packages])
    done = json.loads(_tool(["node", str(HERE / "clients.mjs"), url, whose], own))["done"]
    assert done, "no step was done"
    return f"{len(done)} steps: {'; '.join(done)}"


def locust(url: str, folder: Path) -> str:
    """Run locust with streams, plain chats and clients that leave."""
    program = install("locust") / "locust"
    argv = [str(program), "-f", str(HERE / "locustfile.py"), "--headless", "--host", url, "--only-summary", "--json"]
    argv += ["-u", str(LOCUST_USERS), "-r", str(LOCUST_USERS), "-t", f"{LOCUST_S}s", "--stop-timeout", "20"]
    stats: list[dict[str, Any]] = json.loads(_tool(argv, folder))
    counts = ", ".join(f"{each['name']} {each['num_requests']}" for each in stats)
    failures = sum(each["num_failures"] for each in stats)  # which it also tells by its exit code
    assert failures == 0, f"{failures} failures of {counts}"
    return f"{LOCUST_USERS} users for {LOCUST_S} s: {counts}; 0 failures"


def aiperf(url: str, folder: Path) -> str:
    """Run aiperf with streams."""
    return aiperf_streams(url, folder, model="gpt-4o", requests=AIPERF_REQUESTS, isl=64, osl=32)


def aiperf_streams(url: str, folder: Path, *, model: str, requests: int, isl: int, osl: int) -> str:
    """Run aiperf with so many streams.

    Args:
        url: of the router.
        folder: for its files, empty.
        model: that is asked for.
        requests: how many.
        isl, osl: tokens in and out, by a tokenizer that is nobody's.

    Returns:
        What came out, in one line.

    Raises:
        AssertionError: Not all were good.
        Uninstallable: It cannot be had here.
    """
    program = install("aiperf") / "aiperf"
    argv = [str(program), "profile", "--model", model, "--url", url, "--endpoint-type", "chat", "--streaming"]
    argv += ["--concurrency", str(AIPERF_CLIENTS), "--request-count", str(requests)]
    argv += ["--tokenizer", "evenload/tiny", "--isl", str(isl), "--osl", str(osl)]
    argv += ["--ui", "none", "--output-artifact-dir", str(folder)]
    _tool([str(program.with_name("python")), str(HERE / "tokenizer.py"), str(folder)], folder)
    _tool(argv, folder, HF_HOME=str(folder), HF_HUB_OFFLINE="1")
    found = json.loads(next(folder.rglob("profile_export_aiperf.json")).read_text(encoding="utf-8"))
    count = int(found["request_count"]["avg"])
    assert count == requests, f"{count} of {requests} requests were good"
    ttft = found["time_to_first_token"]
    return f"{count} streams, {AIPERF_CLIENTS} at once, all good; TTFT p50 {ttft['p50']:.0f} ms"


TOOLS: dict[str, Callable[[str, Path], str]] = {
    f"openai {OPENAI} (npm)": npm_openai,
    f"@anthropic-ai/sdk {ANTHROPIC} (npm)": npm_anthropic,
    f"locust {version('locust')}": locust,
    f"aiperf {version('aiperf')}": aiperf,
}


def _tool(argv: list[str], folder: Path, **env: str) -> str:
    """Run a tool; returns what it printed."""
    done = subprocess.run(
        argv, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=TOOL_S, check=False
    )
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-20:]
    assert done.returncode == 0, f"{Path(argv[0]).name} ended with {done.returncode}: {' '.join(said)}"
    return done.stdout


def engine(name: str) -> tuple[ChildSpec, str]:
    """Describe an llmock server; returns its base URL too."""
    port = ports.choose_free("127.0.0.1")
    program = Path(sys.executable).with_name("llmock")
    argv = [str(program), "serve", "--port", str(port), "--log-level", "warning", "--stream-chunk-delay-ms", "2"]
    url = f"http://127.0.0.1:{port}"
    return ChildSpec(name, argv, ready=lambda: answers(f"{url}/v1/models"), restart=None), url


def router(engines: list[str], folder: Path) -> tuple[ChildSpec, str]:
    """Describe Evenload before the engines, which speak both APIs; returns its base URL too."""
    pools = [
        {"name": name, "models": models, "instances": [{"url": url + path, "kind": "none"} for url in engines]}
        for name, models, path in (
            ("openai", ["gpt-4o", "text-embedding-3-small"], ""),
            ("anthropic", ["messages-model"], "/anthropic"),
        )
    ]
    for pool in pools:
        for number, instance in enumerate(pool["instances"]):
            instance["id"] = f"{pool['name']}-{number}"  # type: ignore[index]
    port = ports.choose_free("127.0.0.1")
    settings = Settings.model_validate(
        {"kafka": {"bootstrap": "127.0.0.1:1"}, "pools": pools, "router": {"port": port, "announce_s": 0}}
    )
    spec = service("evenload", "router", settings, write_settings(settings, folder / "evenload.yaml"))
    return spec, f"http://127.0.0.1:{port}"


def outcome(tool: Callable[[str, Path], str], url: str, folder: Path) -> Outcome:
    """Run one tool."""
    try:
        return Outcome("ok", tool(url, folder))
    except Uninstallable as error:
        return Outcome("cannot be installed here", str(error))
    except (AssertionError, OSError, subprocess.SubprocessError, ValueError, LookupError, StopIteration) as error:
        return Outcome("failed", f"{type(error).__name__} {error}"[:1000])


def main() -> int:
    """Run all tools and write what came out."""
    found: dict[str, Outcome] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def up(described: tuple[ChildSpec, str]) -> str:
            child = Child(described[0], emit=lambda *_: None)
            stack.callback(child.stop, 1.0)
            child.start().wait_ready()
            return described[1]

        url = up(router([up(engine("llmock-0")), up(engine("llmock-1"))], folder))
        for name, tool in TOOLS.items():
            own = folder / tool.__name__
            own.mkdir()
            found[name] = outcome(tool, url, own)
            print(f"{name}: {found[name].ended}: {found[name].seen}", flush=True)
    _write(found)
    return 1 if any(each.ended == "failed" for each in found.values()) else 0


def _write(found: dict[str, Outcome]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE}: the marks {BEGIN!r} and {END!r} are not there"
    rows = [
        f"| {name} | {each.ended} | {' '.join(each.seen.replace('|', '/').split())} |" for name, each in found.items()
    ]
    table = "\n".join(["| tool | outcome | seen |", "|---|---|---|", *rows])
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
