"""One engine model, two clocks: the demo's engine over HTTP in real time and the simulator's in virtual time."""

from dataclasses import replace
from random import Random
from statistics import median

from evenload.demo.engine_server import EngineServer
from evenload.demo.load import LoadGenerator
from evenload.sim import synthetic
from evenload.sim.engine import Engine
from evenload.sim.jobs import Job, Workload, arrivals
from evenload.sim.lookahead import unloaded_ttft_ms
from evenload.sim.presets import preset
from evenload.sim.sequence import EmissionKind, SimRequest
from evenload.workload import Arrival

MACHINE, RATE_RPS, LOAD_S, OUTPUT_TOKENS_MAX = "l40s-8b", 5.0, 8.0, 40
# Sockets and timers of a busy machine are some milliseconds late. The engine's time runs at half the speed, so that a
# late millisecond counts half.
SPEED = 0.5
MEDIAN_TOLERANCE, P90_TOLERANCE = 0.10, 0.30


class Witnessed(Engine):
    """The engine, and who came when: a client that is late must be late for both clocks."""

    def __init__(self) -> None:
        super().__init__(preset(MACHINE))
        self.came: list[tuple[float, SimRequest]] = []

    def submit(self, request: SimRequest, now_ms: float) -> bool:
        self.came.append((now_ms, request))
        return super().submit(request, now_ms)


def short_load() -> list[Job]:
    """Jobs that are known by the size of their prompt."""
    rows = synthetic.rows("azure-conv")
    jobs = arrivals(Workload(trace="azure-conv", rate_rps=RATE_RPS), rows, RATE_RPS, LOAD_S, Random("two clocks"))
    assert len(jobs) < 64
    return [
        replace(
            job,
            prompt_tokens=job.prompt_tokens // 64 * 64 + 64 + job.number,
            output_tokens=min(job.output_tokens, OUTPUT_TOKENS_MAX),
        )
        for job in jobs
    ]


async def real_first_ms(server: EngineServer, jobs: list[Job]) -> dict[int, float]:
    """Engine time at which clients had their first token, by prompt size."""
    sizes = {job.at_ms / 1000.0 / SPEED: job.prompt_tokens for job in jobs}
    asked = [Arrival(job.at_ms / 1000.0 / SPEED, job.prompt_tokens, job.output_tokens) for job in jobs]
    start_ms = server.life.now_ms()
    results = await LoadGenerator([server.url], "tiny").run(asked)
    return {
        sizes[one.at_s]: start_ms + (one.at_s * 1000.0 + one.ttft_ms) * SPEED
        for one in results
        if one.ttft_ms is not None
    }


def virtual_first_ms(came: list[tuple[float, SimRequest]]) -> dict[int, float]:
    engine = Engine(preset(MACHINE))
    emissions = []
    for at_ms, request in came:
        engine.submit(request, at_ms)
        emissions += engine.advance(at_ms)
    while (due_ms := engine.next_event_ms()) is not None:
        emissions += engine.advance(due_ms)
    sizes = {request.id: request.prompt_tokens for _, request in came}
    return {sizes[one.request_id]: one.at_ms for one in emissions if one.kind is EmissionKind.FIRST_TOKEN}


async def test_both_clocks_give_a_request_the_same_ttft() -> None:
    jobs = short_load()
    server = EngineServer(model="tiny", preset=MACHINE, speed=SPEED, seed=7)
    await server.start()
    try:
        assert type(server.life.core) is Engine, "the demo's engine is the simulator's"
        server.life.core = witnessed = Witnessed()
        real = await real_first_ms(server, jobs)
    finally:
        await server.stop()
    virtual = virtual_first_ms(witnessed.came)
    arrived = {request.prompt_tokens: at_ms for at_ms, request in witnessed.came}
    assert real.keys() == virtual.keys() == {job.prompt_tokens for job in jobs}
    ttft_ms = {size: virtual[size] - arrived[size] for size in virtual}
    waited = sum(ttft_ms[size] > 1.05 * unloaded_ttft_ms(preset(MACHINE), size) for size in ttft_ms)
    assert waited > len(jobs) / 2, "requests have to meet each other for the comparison to mean something"
    off = sorted(abs((real[size] - arrived[size]) / ttft_ms[size] - 1.0) for size in ttft_ms)
    assert median(off) < MEDIAN_TOLERANCE
    assert off[int(0.9 * len(off))] < P90_TOLERANCE
