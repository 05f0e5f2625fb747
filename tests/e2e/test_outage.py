"""Kafka goes away for a while and comes back: no process needs a restart, none spins, none floods its log."""

import asyncio
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from evenload.broker import Broker
from evenload.bus.topics import ensure_topics, specs
from evenload.cli.local import service, write_settings
from evenload.cli.supervise import Child
from evenload.settings import Settings
from tests.e2e import fleet

NAMES = ("scorer", "collector", "router")
DOWN_S = float(os.environ.get("OUTAGE_S", "20"))
IDLE_S = 6.0
SETTLE_S = 2.0  # connections break, and everybody notices
# CPU seconds per second while Kafka is away: what the process needs otherwise, and this for its attempts to connect.
# Measured on 2 noisy cores: scorer 0.03 to 0.06 more, collector and router 0.01 to 0.02.
CPU_EXTRA_MAX = 0.12
LINE_EVERY_S = 9.5  # 10 s, less what the clock of the reader may be off

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.timeout(180 + 2 * DOWN_S)]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TIMESTAMP = re.compile(r"^\S+Z ")
_DIGITS = re.compile(r"\d+")


@dataclass
class Process:
    """One of Evenload's processes, and when it wrote which line."""

    child: Child = field(init=False)
    lines: list[tuple[float, str]] = field(default_factory=list)

    def start(self, name: str, settings: Settings, folder: Path) -> None:
        """Start it; what it writes goes to `lines`."""
        file = write_settings(settings, folder / f"{name}.yaml")
        self.child = Child(
            service(name, name, settings, file), emit=lambda _, line: self.lines.append((time.monotonic(), line))
        )
        self.child.start()

    def cpu_s(self) -> float:
        """CPU time that it has used so far, all its threads."""
        stat = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / _TICKS_PER_S

    def too_often(self, since_s: float) -> list[str]:
        """Return lines that were written again within 10 s of another of the same cause."""
        last: dict[str, float] = {}
        found = []
        for at_s, line in self.lines:
            cause = _DIGITS.sub("", _TIMESTAMP.sub("", line))[:80]
            if at_s >= since_s and at_s - last.get(cause, -1e9) < LINE_EVERY_S:
                found.append(line)
                continue  # the next one is measured from the last that was right
            last[cause] = at_s
        return found


async def used(processes: dict[str, Process], seconds: float) -> dict[str, float]:
    """CPU seconds per second of each process over the next `seconds`."""
    before, begun = {name: one.cpu_s() for name, one in processes.items()}, time.monotonic()
    await asyncio.sleep(seconds)
    span_s = time.monotonic() - begun
    return {name: (one.cpu_s() - before[name]) / span_s for name, one in processes.items()}


async def ask(settings: Settings) -> None:
    """One request, answered."""
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{settings.router.port}/v1", api_key="none", max_retries=0
    ) as client:
        answer = await client.chat.completions.create(
            model=fleet.MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=3
        )
        assert answer.choices[0].message.content


async def test_while_kafka_is_away_nobody_spins_or_floods_and_when_it_is_back_nobody_needs_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = fleet.engines(2)
    await engines.start()
    processes = {name: Process() for name in NAMES}
    try:
        with Broker(tmp_path / "kafka", properties={"group.min.session.timeout.ms": "1000"}) as broker:
            settings = fleet.settings_for(engines, broker.bootstrap, "t", spool=tmp_path / "spool")
            await ensure_topics(broker.bootstrap, specs("t"))
            for name, one in processes.items():
                await asyncio.to_thread(one.start, name, settings, tmp_path)
            try:
                await _outage(broker, settings, processes, capsys)
            except AssertionError as error:
                tails = "\n".join(f"--- {name}\n{one.child.tail}" for name, one in processes.items())
                raise AssertionError(f"{error}\n{tails}") from error
            finally:
                for one in reversed(processes.values()):
                    await asyncio.to_thread(one.child.stop)
    finally:
        await engines.stop()


async def _outage(
    broker: Broker, settings: Settings, processes: dict[str, Process], capsys: pytest.CaptureFixture[str]
) -> None:
    port = settings.router.port
    await fleet.becomes(port, "/readyz", lambda page: page["view"] == "fresh", 60)
    await ask(settings)
    pids = {name: one.child.pid for name, one in processes.items()}
    idle = await used(processes, IDLE_S)
    await asyncio.to_thread(broker.kill)
    down_s = time.monotonic()
    await asyncio.sleep(SETTLE_S)
    away = await used(processes, DOWN_S - SETTLE_S)
    await ask(settings)
    await asyncio.to_thread(broker.start)
    up_s = time.monotonic()
    await fleet.becomes(port, "/readyz", lambda page: page["view"] == "fresh", 60)
    await ask(settings)
    await fleet.becomes(port, "/fleet", _all_told, 60)
    await fleet.becomes(settings.collector.metrics_port, "/readyz", lambda page: page["ready"], 30)
    back_s = time.monotonic() - up_s
    lines = {name: sum(at >= down_s for at, _ in one.lines) for name, one in processes.items()}
    with capsys.disabled():
        print(f"\nKafka away for {up_s - down_s:.0f} s, all well {back_s:.1f} s after it answered again; lines {lines}")
        for name in NAMES:
            print(f"  {name}: {idle[name]:.3f} CPU s per s with Kafka, {away[name]:.3f} without")
    assert {name: one.child.pid for name, one in processes.items()} == pids
    assert {name: one.child.restarts for name, one in processes.items()} == dict.fromkeys(NAMES, 0)
    for name, one in processes.items():
        assert not one.too_often(down_s), f"{name} floods: {one.too_often(down_s)[:3]}"
        assert away[name] <= idle[name] + CPU_EXTRA_MAX, f"{name} spins: {away[name]:.3f} CPU seconds per second"


def _all_told(page: dict[str, list[dict[str, list[dict[str, float]]]]]) -> bool:
    """The last request went through Kafka and came back: no own event is on top of the snapshots."""
    return all(one["own_events_on_top"] == 0 for one in page["pools"][0]["instances"])
