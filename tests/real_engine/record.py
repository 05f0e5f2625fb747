"""Small files of what was said: pages and streams as they came, less what nobody reads."""

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .chat import Said

FRAMES_KEPT = 3  # at the beginning and at the end of a stream
# Of vLLM's 50 kB: what adapters read, and beside it what they must not mistake for it.
FAMILIES = (
    "process_start_time_seconds",
    "vllm:admission_rejections",
    "vllm:engine_sleep_state",
    "vllm:generation_tokens_total",
    "vllm:gpu_",
    "vllm:iteration_tokens_total_",
    "vllm:kv_cache_usage_perc",
    "vllm:num_",
    "vllm:prefix_cache",
    "vllm:request_success",
)
_HEADERS = ("content-type", "retry-after", "transfer-encoding", "content-length")


@dataclass(frozen=True)
class Result:
    """What came out of a step.

    Attributes:
        run: when the run began that it is of, UTC.
        load: of the machine, runnable processes over the last minute, when the step ended.
        files: what was recorded in it, by name.
        checks: what was expected, what was seen, and PASS, FAIL or SEEN.
    """

    run: str
    load: float
    files: list[str]
    checks: list[tuple[str, str, str]]


Results = dict[str, Result]


class Record:
    """A folder of recordings, each of the last run of its step: what a step recorded before is removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        self._files: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def result(self, step: str, checks: list[tuple[str, str, str]]) -> None:
        """Keep what came out of a step, in the place of what came out of it before."""
        results = self.results()
        if step in results:
            for name in set(results[step].files) - self._files:
                (self._folder / name).unlink(missing_ok=True)
        results[step] = Result(self._run, round(os.getloadavg()[0], 1), sorted(self._files), checks)
        self._files.clear()
        text = json.dumps({name: asdict(result) for name, result in results.items()}, indent=1, sort_keys=True)
        (self._folder / "results.json").write_text(text + "\n", encoding="utf-8")

    def results(self) -> Results:
        """Return what came out of each step last."""
        try:
            text = (self._folder / "results.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        kept = {step: Result(**result) for step, result in json.loads(text).items()}
        return {step: replace(each, checks=[(a, b, c) for a, b, c in each.checks]) for step, each in kept.items()}

    def page(self, name: str, page: bytes) -> None:
        """Keep a page of metrics."""
        self._keep(f"{name}.txt", trimmed_page(page))

    def answer(self, name: str, said: Said) -> None:
        """Keep an answer: its body, and beside it how it came."""
        self._keep(f"{name}.body", trimmed_stream(said.body))
        how = {
            "status": said.status,
            "ending": said.ending,
            "headers": {key: said.headers[key] for key in _HEADERS if key in said.headers},
        }
        self.json(name, how)

    def json(self, name: str, value: Any) -> None:
        """Keep plain data."""
        self._keep(f"{name}.json", (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())

    def _keep(self, name: str, content: bytes) -> None:
        (self._folder / name).write_bytes(content)
        self._files.add(name)


def trimmed_page(page: bytes) -> bytes:
    """Drop the families that no adapter looks at, and buckets."""
    kept = [
        line
        for line in page.splitlines(keepends=True)
        if line.removeprefix(b"# HELP ").removeprefix(b"# TYPE ").startswith(tuple(map(str.encode, FAMILIES)))
        and b"_bucket{" not in line
        and b"_created" not in line
    ]
    return b"".join(kept)


def trimmed_stream(body: bytes) -> bytes:
    """Drop frames from the middle of a stream; anything else stays as it is."""
    if not body.startswith(b"data: "):
        return body
    *frames, rest = body.split(b"\n\n")
    if len(frames) > 2 * FRAMES_KEPT:
        frames = frames[:FRAMES_KEPT] + frames[-FRAMES_KEPT:]
    return b"".join(frame + b"\n\n" for frame in frames) + rest
