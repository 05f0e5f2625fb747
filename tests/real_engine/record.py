"""Small files of what was said: pages and streams as they came, less what nobody reads."""

import json
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


Results = dict[str, list[tuple[str, str, str]]]  # by step: what was expected, what was seen, and PASS, FAIL or SEEN


class Record:
    """A folder of recordings; a file that is there already is written anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def result(self, step: str, checks: list[tuple[str, str, str]]) -> None:
        """Keep what came out of a step, in the place of what came out of it before."""
        self.json("results", self.results() | {step: checks})

    def results(self) -> Results:
        """Return what came out of each step last."""
        try:
            text = (self._folder / "results.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        return {step: [tuple(check) for check in checks] for step, checks in json.loads(text).items()}

    def page(self, name: str, page: bytes) -> None:
        """Keep a page of metrics."""
        (self._folder / f"{name}.txt").write_bytes(trimmed_page(page))

    def answer(self, name: str, said: Said) -> None:
        """Keep an answer: its body, and beside it how it came."""
        (self._folder / f"{name}.body").write_bytes(trimmed_stream(said.body))
        how = {
            "status": said.status,
            "ending": said.ending,
            "headers": {key: said.headers[key] for key in _HEADERS if key in said.headers},
        }
        self.json(name, how)

    def json(self, name: str, value: Any) -> None:
        """Keep plain data."""
        text = json.dumps(value, indent=1, sort_keys=True) + "\n"
        (self._folder / f"{name}.json").write_text(text, encoding="utf-8")


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
