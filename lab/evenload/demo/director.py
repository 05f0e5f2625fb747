"""Plays a script: acts, lets time pass, watches. The only place where the story meets the processes."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from evenload.broker import Broker
from evenload.cli.supervise import ChildFailedError
from evenload.demo.checks import BACK_SHARE_MIN, WINDOW_S, caught_up
from evenload.demo.lane import Lane
from evenload.demo.observe import attempt_shares
from evenload.demo.story import SLOW_ENGINE, Action, Mark, Step, Until

TICK_S: Final = 0.1
OBSERVE_S: Final = 0.5
KILLED_ROUTER: Final = -1  # the last one


@dataclass(frozen=True, slots=True)
class Moment:
    """What a view shows besides the lanes.

    Attributes:
        step: The current step.
        step_s: Its age.
        elapsed_s: Since the load began.
        broker_running: Whether Kafka's process is there.
    """

    step: Step
    step_s: float
    elapsed_s: float
    broker_running: bool


class View(Protocol):
    """Shows the lanes while a script is played."""

    def begin(self, step: Step, elapsed_s: float) -> None:
        """A step begins."""
        ...

    def update(self, moment: Moment) -> None:
        """There are new observations."""
        ...


class Director:
    """Plays scripts over lanes.

    Attributes:
        marks: When the steps were, on the machine's monotonic clock.
    """

    def __init__(self, lanes: Sequence[Lane], broker: Broker, view: View) -> None:
        self.lanes = lanes
        self.marks: list[Mark] = []
        self._broker, self._view = broker, view
        self._errand: _Errand | None = None
        self._router_down = False
        self._start_s = time.monotonic()
        self._observed_s = 0.0

    def play(self, script: Sequence[Step]) -> None:
        """Play a script to its end.

        Raises:
            ChildFailedError: A process ended or refused.
            BrokerError: Kafka did not stop or start.
        """
        for step in script:
            self._play(step)

    def close(self) -> None:
        """Break off what is still being done to Kafka: somebody wants to leave."""
        while self._errand is not None and not self._errand.done():
            self._broker.kill()  # whoever waits for it to answer, or to end, notices
            self._errand.join(TICK_S)

    def marks_of(self, lane: Lane) -> list[Mark]:
        """The marks in the time of a lane's load."""
        assert lane.load is not None
        start_s = lane.load.start_s
        return [Mark(mark.key, mark.start_s - start_s, mark.end_s - start_s) for mark in self.marks]

    def _play(self, step: Step) -> None:
        start_s = time.monotonic()
        self._view.begin(step, start_s - self._start_s)
        self._act(step)
        while (step_s := time.monotonic() - start_s) < step.seconds:
            self._watch(step, step_s)
            if step_s >= step.seconds_min and step.until is not None and self._reached(step.until):
                break
            time.sleep(TICK_S)
        self._finish_errand()
        if step.action is Action.START_ROUTER:
            self._router_down = False
        self.marks.append(Mark(step.key, start_s, time.monotonic()))

    def _act(self, step: Step) -> None:
        if step.engine is not None:
            for lane in self.lanes:
                lane.engines.fault(step.engine, step.fault)
        match step.action:
            case Action.KILL_ROUTER:
                self._router_down = True
                self.lanes[0].kill_router(KILLED_ROUTER)
            case Action.START_ROUTER:
                self.lanes[0].start_router(KILLED_ROUTER)
            case Action.STOP_BROKER:
                self._errand = _Errand(self._broker.stop)
            case Action.START_BROKER:
                self._errand = _Errand(self._broker.start)

    def _watch(self, step: Step, step_s: float) -> None:
        now_s = time.monotonic()
        if now_s - self._observed_s < OBSERVE_S:
            return
        self._observed_s = now_s
        for lane in self.lanes:
            lane.observe()
            ended = lane.unexpected_end(but_router=KILLED_ROUTER if self._router_down else None)
            if ended is not None:
                raise ChildFailedError(ended)
        self._view.update(Moment(step, step_s, now_s - self._start_s, self._broker.running))

    def _reached(self, until: Until) -> bool:
        lane = self.lanes[0]
        if not lane.samples:
            return False
        sample = lane.samples[-1]
        match until:
            case Until.BROKER_UP:
                return self._errand is None or self._errand.done()
            case Until.ROUTER_READY:
                return lane.router_ready(KILLED_ROUTER)
            case Until.CAUGHT_UP:
                return caught_up(sample)
            case Until.SHARE_BACK:
                healed = lane.engines.names[SLOW_ENGINE]
                shares = attempt_shares(lane.samples, sample.at_s - WINDOW_S, sample.at_s)
                return shares.get(healed, 0.0) > BACK_SHARE_MIN

    def _finish_errand(self) -> None:
        if self._errand is not None:
            self._errand.wait()
            self._errand = None


class _Errand:
    """A blocking call in a thread, so that the view goes on."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="errand", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return not self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, however it ends, within a bound."""
        self._thread.join(timeout_s)

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            BaseException: What it raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error
