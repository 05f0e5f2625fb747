"""What two real vLLM 0.32.0 engines said in a run of `make real-engine`, read again by what reads it in production.

Recorded by it, in `golden/`, nothing by hand: pages less the families that no adapter looks at, streams less the frames
in their middle.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from evenload.collector.engines.adapters import recognise
from evenload.collector.watch import Watch
from evenload.router.classify import classify
from evenload.router.fake_wire import END, SSE_HEAD, Stall, chunk, response
from evenload.router.fakes import post
from evenload.router.sse_chat import ChatObserver
from evenload.schemas import Membership
from tests.router.stage import GOOD, GOOD_BODY, PLAIN, STREAM, events, fleet

from .__main__ import PAGE, STEPS, origin, table
from .record import Record
from .steps_ill import UNFINISHED_MAX

GOLDEN = Path(__file__).parent / "golden"
# Streams that were never ended, of an earlier run: docs/real-engines.md.
SILENT = Path(__file__).parent / "golden_silent"
# Page: running, waiting.
PAGES = {"idle-roomy": (0, 0), "idle-tight": (0, 0), "full": (UNFINISHED_MAX, 0), "draining": (None, None)}
# Stream: finished, [DONE], what its error means.
STREAMS: dict[str, tuple[bool, bool, tuple[str, str] | None]] = {
    "chat-stream": (True, True, None),
    "burst-stream": (False, True, ("saturated", "engine_busy")),
    "killed-stream": (False, True, ("stream_error", "engine_dead")),
    "killed-stream-routed": (False, True, ("stream_error", "engine_dead")),
    "drained": (True, True, None),
    "stopped-stream": (False, True, ("stream_error", "engine_dead")),
    "stopped-stream-routed": (False, False, ("stream_error", "error_event")),
}
# Answer that is no stream: status, what it means, None if it is good.
ANSWERS: dict[str, tuple[int, tuple[str, str, bool] | None]] = {
    "chat-plain": (200, None),
    "too-long": (400, ("rejected", "http_400", False)),
    "full-plain": (503, ("saturated", "engine_busy", True)),
    "full-stream": (503, ("saturated", "engine_busy", True)),
    "draining-plain": (500, ("http_error", "draining", True)),
    "draining-stream": (500, ("http_error", "draining", True)),
    "outlived-refused": (500, ("http_error", "draining", True)),
    "crowd-refused": (503, ("saturated", "engine_busy", True)),
}
# What the router believed when it had noticed: engine, why it was excluded, what it says of it.
VIEWS = {
    "full-fleet": ("tight", "", ""),
    "draining-fleet": ("roomy", "draining", "it drains"),
    "stopped-fleet": ("tight", "draining", "it drains"),
    "killed-fleet": ("tight", "not_ready", "not ready"),
}
HEALTHS = {"killed-health": ["health_503", "refused"], "stopped-health": ["health_503", "refused"]}


def said(name: str, folder: Path = GOLDEN) -> tuple[dict[str, Any], bytes]:
    """Return how an answer came, and its body."""
    how: dict[str, Any] = json.loads((folder / f"{name}.json").read_bytes())
    return how, (folder / f"{name}.body").read_bytes()


def frames(body: bytes) -> list[Any]:
    """Return the steps that send a recorded stream, a chunk per frame."""
    return [SSE_HEAD, *(chunk(frame + b"\n\n") for frame in body.split(b"\n\n") if frame)]


def test_every_recording_is_tested() -> None:
    names = {path.stem for path in GOLDEN.iterdir()} - {"results"}
    assert names == {*PAGES, *STREAMS, *ANSWERS, *VIEWS, *HEALTHS}


def test_each_recording_is_of_the_run_that_its_step_is_of() -> None:
    files = sorted(name for result in Record(GOLDEN).results().values() for name in result.files)
    assert files == sorted({path.name for path in GOLDEN.iterdir()} - {"results.json"})


def test_all_steps_are_of_one_run_and_held() -> None:
    results = Record(GOLDEN).results()
    assert results.keys() == STEPS.keys()
    assert len({result.run for result in results.values()}) == 1
    assert [check for result in results.values() for check in result.checks if check[2] == "FAIL"] == []


def test_the_page_has_what_was_recorded() -> None:
    results, page = Record(GOLDEN).results(), PAGE.read_text(encoding="utf-8")
    assert f"\n\n{origin(results)}\n\n{table(results)}\n" in page


@pytest.mark.parametrize("name", PAGES)
def test_each_recorded_page_says_what_the_engine_was_doing(name: str) -> None:
    page = (GOLDEN / f"{name}.txt").read_bytes()
    found = recognise(page)
    assert found is not None
    read = found.parse(page)
    assert (found.kind, read.missing, read.dropped) == ("vllm", (), 0)
    running, waiting = PAGES[name]
    assert running is None or (read.running, read.waiting) == (running, waiting)
    assert (read.rejections or 0) > 0 if name == "full" else not read.rejections


@pytest.mark.parametrize("name", STREAMS)
def test_each_recorded_stream_is_understood(name: str) -> None:
    finished, done, error = STREAMS[name]
    how, body = said(name)
    assert how["status"] == 200
    observer = ChatObserver()
    observer.feed(body)
    observer.close()
    assert (observer.finished, observer.done, observer.malformed_frames) == (finished, done, 0)
    verdict = observer.error and observer.error.verdict
    assert (verdict and (verdict.kind, verdict.cause)) == error


@pytest.mark.parametrize("name", ANSWERS)
def test_each_recorded_answer_is_typed(name: str) -> None:
    status, meaning = ANSWERS[name]
    how, body = said(name)
    assert how["status"] == status
    if meaning is None:
        assert json.loads(body)["usage"]["completion_tokens"] > 0
        return
    headers = [(key.encode(), value.encode()) for key, value in how["headers"].items()]
    verdict = classify(status, headers, body)
    assert (verdict.kind, verdict.cause, verdict.retriable) == meaning


def test_what_all_engines_refused_says_when_to_come_back() -> None:
    how, body = said("crowd-refused")
    assert int(how["headers"]["retry-after"]) >= 1
    assert json.loads(body)["error"]["code"] == "overloaded"


@pytest.mark.parametrize("name", ["burst-stream", "full-stream", "draining-plain", "draining-stream", "stopped-stream"])
async def test_what_an_engine_refused_costs_the_client_nothing(name: str) -> None:
    how, body = said(name)
    refusal = [*frames(body), END] if body.startswith(b"data: ") else [response(how["status"], body)]
    async with fleet(refusal, GOOD) as f:
        for _ in range(4):
            assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert f.requests("a") > 0


async def test_a_recorded_answer_and_a_clients_error_pass_unchanged() -> None:
    for name, body in (("chat-plain", PLAIN), ("too-long", PLAIN)):
        how, recorded = said(name)
        async with fleet([response(how["status"], recorded)]) as f:
            got = await post(f.url, body)
            assert (got.status, got.body) == (how["status"], recorded)


async def test_a_stream_that_an_engine_broke_in_good_form_passes_as_it_came_and_counts_as_broken() -> None:
    body = said("killed-stream")[1]
    async with fleet([*frames(body), END], GOOD) as f:
        while not f.requests("a"):
            got = await post(f.url, STREAM)
        assert got.body == body
        assert f.state("a").errors == 1


@pytest.mark.parametrize("name", ["outlived", "stopped-stream"])
async def test_a_stream_that_an_engine_holds_in_silence_is_ended_with_an_error(name: str) -> None:
    how, body = said(name, SILENT)
    assert how["ending"] == "silent"
    async with fleet([*frames(body), Stall()], timeouts={"idle_s": 0.3}) as f:
        got = await post(f.url, STREAM)
        assert got.body.startswith(body)
        assert events(got)[-1]["error"]["code"] == "idle"


@pytest.mark.parametrize("name", VIEWS)
def test_the_router_had_noticed(name: str) -> None:
    engine, excluded, why = VIEWS[name]
    seen = json.loads((GOLDEN / f"{name}.json").read_bytes())[engine]
    assert seen["excluded"] == excluded
    assert why in seen["why"]


@pytest.mark.parametrize("name", HEALTHS)
def test_the_recorded_health_makes_it_not_ready(name: str) -> None:
    watch = Watch("tight", 250)
    found: list[tuple[str, str]] = []
    for entry in json.loads((GOLDEN / f"{name}.json").read_bytes()):
        health, _, at = entry.partition(" at ")
        at_ms = 1000 * float(at.removesuffix(" s"))
        if health.isdigit():
            news = [*watch.on_health(int(health), at_ms), *watch.on_models(True, at_ms)]
        else:
            news = watch.on_failure(health, at_ms)
        found += [(event.change, event.cause) for event in news if isinstance(event, Membership)]
    assert found == [("ready", ""), *(("not_ready", cause) for cause in HEALTHS[name])]
