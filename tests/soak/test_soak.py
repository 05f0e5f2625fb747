"""Faults at random moments, under load, for as long as wanted: the states stay the pure fold of the log.

Two workers of one group suffer faults independently of each other, so faults meet rebalances and recoveries. Every
`CHECK_EVERY` faults the load pauses, and all that was said so far is compared with the log: every state record and
every snapshot that a reader saw, bit for bit, and the final state of every instance. `SOAK_FAULTS` is the
number of faults, `SOAK_SEED` their order.
"""

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evenload.bus.topics import partition_for
from evenload.schemas import InstanceState, encode
from evenload.scoring import DEFAULT, ScoringConfig
from evenload.settings.scoring import UNKNOWN
from tests.kafka_fixtures import TestTopics
from tests.scorer.worker import WorkerProcess
from tests.soak.faults import SESSION_S, Victim
from tests.soak.load import Load
from tests.soak.readers import StateReader, ViewReader
from tests.soak.truth import Difference, Truth, difference

PARTITIONS = 4
INSTANCES = [f"i-{number}" for number in range(16)]
FAULTS = int(os.environ.get("SOAK_FAULTS", "200"))
SEED = int(os.environ.get("SOAK_SEED", "20261130"))
CHECK_EVERY = 20
ARRIVE_S = 60.0  # for everything to arrive after the last fault
CHECK_S = 150.0
LOG_LINES = 40  # of each scorer, shown when something failed

pytestmark = [pytest.mark.soak, pytest.mark.kafka, pytest.mark.timeout(180 + 15 * FAULTS)]


def config_of(instance: str) -> ScoringConfig:
    return DEFAULT if instance == "i-0" else UNKNOWN


@dataclass
class Scene:
    """Everything that takes part.

    Attributes:
        target: the fold of all of the log, which states and views must come to.
        truth: lags behind it, for what was said on the way there.
    """

    load: Load
    victims: list[Victim]
    view: ViewReader
    states: StateReader
    truth: Truth
    target: Truth
    steps: list[str] = field(default_factory=list)

    async def check(self) -> None:
        """Let everything arrive, and compare all of it with the log."""
        await self.load.pause()
        try:
            await self._arrive()
            await self.truth.read_on(self.states.take_seen(), self.view.take_seen())
            self._nothing_is_lost_or_counted_twice()
            assert not self.view.backwards, self.view.backwards[0]
            assert not self.states.backwards, self.states.backwards[0]
        finally:
            self.load.resume()

    async def _arrive(self) -> None:
        """Wait until states and views are those of the end of the log."""
        deadline = time.monotonic() + ARRIVE_S
        await self.target.read_on((), ())
        while different := self._first_difference():
            if time.monotonic() > deadline:
                raise Difference(different)
            await asyncio.sleep(0.2)

    def _first_difference(self) -> str | None:
        for name, want in self.target.states.items():
            have = self.states.kept.get(name)
            if have is None or have[1] != encode(want):
                return difference(f"the state of {name}", have and have[0], want)
            seen = self.view.view.snapshot(name)
            if seen is None or seen.state.as_of != want.as_of:
                return difference(f"the view of {name}", seen and seen.state, want)
        return None

    def _nothing_is_lost_or_counted_twice(self) -> None:
        """Beside the fold, which knows each batch by its sequence: what was sent, counted by who sent it."""
        for name, state in self.truth.states.items():
            counted = (state.first_tokens, _outcomes(state))
            sent = (self.load.first_tokens[name], self.load.outcomes[name])
            assert counted == sent, f"{name} counts (first tokens, outcomes) {counted}, sent were {sent}: {state!r}"


def _outcomes(state: InstanceState) -> int:
    return state.successes + state.errors + state.saturations + state.neutral


@contextlib.asynccontextmanager
async def scene(topics: TestTopics, folder: Path) -> AsyncIterator[Scene]:
    steps: list[str] = []
    begun = time.monotonic()

    def note(what: str) -> None:
        steps.append(f"{time.monotonic() - begun:7.1f} s  {what}")

    workers = [WorkerProcess(folder, topics.bootstrap, topics.prefix, SESSION_S) for _ in range(2)]
    made = Scene(
        load=Load(topics.bootstrap, topics.names.telemetry, SEED, INSTANCES, PARTITIONS),
        victims=[Victim(f"scorer {n}", worker, SEED + n, note) for n, worker in enumerate(workers)],
        view=ViewReader(topics, {name: partition_for(name.encode(), PARTITIONS) for name in INSTANCES}, config_of),
        states=StateReader(topics, PARTITIONS),
        truth=Truth(topics.bootstrap, topics.names.telemetry, config_of),
        target=Truth(topics.bootstrap, topics.names.telemetry, config_of),
        steps=steps,
    )
    async with contextlib.AsyncExitStack() as stack:
        for worker in workers:
            stack.callback(worker.kill)
        await made.states.start()
        stack.push_async_callback(made.states.close)
        await stack.enter_async_context(made.view.reader)
        await asyncio.gather(*(victim.start() for victim in made.victims))
        await made.load.start()
        stack.push_async_callback(made.load.close)
        yield made


async def test_no_fault_at_any_moment_changes_what_the_log_says(
    topics: TestTopics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene(topics, tmp_path) as stage:
        try:
            for first in range(0, FAULTS, CHECK_EVERY):
                numbers = itertools.repeat(None, min(CHECK_EVERY, FAULTS - first))
                await asyncio.gather(*(_suffer(victim, numbers) for victim in stage.victims))
                async with asyncio.timeout(CHECK_S):
                    await stage.check()
        except BaseException as error:
            steps = "\n".join(stage.steps)
            what = f"{type(error).__name__}: {error}"
            pytest.fail(f"{_logs(tmp_path)}\nseed {SEED}, after these steps:\n{steps}\n{what}", pytrace=False)
        with capsys.disabled():
            print(f"\n{_report(stage)}")


def _logs(folder: Path) -> str:
    texts = {path.name: path.read_text(errors="replace").splitlines() for path in sorted(folder.glob("*.log"))}
    return "\n".join("\n".join([name, *lines[-LOG_LINES:]]) for name, lines in texts.items())


async def _suffer(victim: Victim, numbers: "itertools.repeat[None]") -> None:
    """Take faults from what both workers share until none is left."""
    for _ in numbers:
        await victim.next_fault()


def _report(stage: Scene) -> str:
    recovered = sorted(second for victim in stage.victims for second in victim.recovery_s)
    return (
        f"soak, seed {SEED}: {FAULTS} faults, {stage.load.sent} records ({stage.load.again} of them sent again), "
        f"{stage.truth.verified} states and snapshots verified, {stage.states.overtaken} overtaken states ignored, "
        f"{stage.view.view.older_snapshots} older snapshots ignored, "
        f"{sum(victim.gave_up for victim in stage.victims)} workers ended themselves unasked, "
        f"ready again after {statistics.median(recovered):.1f} s (median), {recovered[-1]:.1f} s at most"
    )
