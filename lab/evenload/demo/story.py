"""The story of the demo, as data: what happens when, to whom, and for how long.

A script is a list of steps. A step does one thing at its start, then lets the load run for a while; one with a
condition ends as soon as the condition holds. Nothing here knows a process: `director.py` plays a script.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

SLOW_TTFT_MS: Final = 3500.0
SLOW_ENGINE: Final = 1  # index in the fleet
SATURATED_ENGINE: Final = 4


class Action(StrEnum):
    """What a step does at its start."""

    NOTHING = "nothing"
    FAULT = "fault"
    HEAL = "heal"
    KILL_ROUTER = "kill_router"
    START_ROUTER = "start_router"
    STOP_BROKER = "stop_broker"
    START_BROKER = "start_broker"


class Until(StrEnum):
    """What ends a step before its time."""

    SHARE_BACK = "share_back"  # the healed engine has its share again
    ROUTER_READY = "router_ready"
    BROKER_UP = "broker_up"
    CAUGHT_UP = "caught_up"  # every view is fresh again and nothing waits to be sent


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        key: Name in marks, checks and figures.
        title: What the viewer reads while it lasts.
        seconds: How long it lasts; with `until`, at most.
        action: What it does at its start.
        engine: Index of the engine it is about.
        fault: What the engine is told, see `faults.py`.
        until: What ends it earlier, but not before `seconds_min`.
    """

    key: str
    title: str
    seconds: float
    action: Action = Action.NOTHING
    engine: int | None = None
    fault: dict[str, Any] | None = None
    until: Until | None = None
    seconds_min: float = 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """When a step was played, in seconds of the load's own time."""

    key: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Lengths in seconds; the shortened story differs in these only."""

    warm_up_s: float = 8.0
    slow_s: float = 30.0
    heal_s_max: float = 30.0
    saturate_s: float = 30.0
    settle_s: float = 3.0
    outage_s: float = 8.0
    return_s_max: float = 20.0
    baseline_warm_up_s: float = 3.0


FULL: Final = Pace()
# Too short to wait for the healed engine's share: that check then looks at the steps that follow as well.
QUICK: Final = Pace(
    warm_up_s=5,
    slow_s=8,
    heal_s_max=2,
    saturate_s=3,
    settle_s=1,
    outage_s=3,
    return_s_max=20,
    baseline_warm_up_s=2,
)

_SATURATION: Final = (
    ("saturated_503", "answers 503", "status_503"),
    ("saturated_429", "answers 429, its KV cache is full", "kv_429"),
    ("saturated_stream", "answers 200, and the stream begins with an error", "stream_error"),
)


def story(pace: Pace = FULL) -> tuple[Step, ...]:
    """The whole script."""
    return (
        Step("warm_up", "warm-up: six engines, all healthy", pace.warm_up_s),
        _slow(pace),
        Step(
            "healed",
            f"engine-{SLOW_ENGINE} has healed: how soon does its share come back?",
            pace.heal_s_max,
            Action.HEAL,
            SLOW_ENGINE,
            until=Until.SHARE_BACK,
            seconds_min=pace.settle_s,
        ),
        *_saturation(pace),
        Step("recovered", f"engine-{SATURATED_ENGINE} has room again", pace.settle_s, Action.HEAL, SATURATED_ENGINE),
        Step("router_down", "kill -9 of a router; its clients go to the other", pace.outage_s, Action.KILL_ROUTER),
        Step(
            "router_back",
            "the router starts again",
            pace.return_s_max,
            Action.START_ROUTER,
            until=Until.ROUTER_READY,
            seconds_min=pace.settle_s,
        ),
        Step("broker_down", "Kafka is stopped; the routers serve on", pace.outage_s, Action.STOP_BROKER),
        Step("broker_starts", "Kafka starts again, with its data", 90.0, Action.START_BROKER, until=Until.BROKER_UP),
        Step(
            "broker_back",
            "Kafka answers; telemetry catches up",
            pace.return_s_max,
            until=Until.CAUGHT_UP,
            seconds_min=pace.settle_s,
        ),
    )


def baseline(pace: Pace = FULL) -> tuple[Step, ...]:
    """The two instance faults only, for a policy to compare with."""
    return (
        Step("warm_up", "baselines: warm-up", pace.baseline_warm_up_s),
        replace(_slow(pace), title=f"baselines: one engine slows 200 -> {SLOW_TTFT_MS:.0f} ms"),
        Step("healed", "baselines: it has healed", pace.settle_s, Action.HEAL, SLOW_ENGINE),
        *(replace(step, title="baselines: one engine is saturated") for step in _saturation(pace)),
        Step("recovered", "baselines: it has room again", pace.settle_s / 2, Action.HEAL, SATURATED_ENGINE),
    )


def _slow(pace: Pace) -> Step:
    return Step(
        "slow",
        f"engine-{SLOW_ENGINE} slows: first token after {SLOW_TTFT_MS:.0f} ms instead of about 200",
        pace.slow_s,
        Action.FAULT,
        SLOW_ENGINE,
        {"slow": {"ttft_ms": SLOW_TTFT_MS}},
    )


def _saturation(pace: Pace) -> tuple[Step, ...]:
    return tuple(
        Step(
            key,
            f"engine-{SATURATED_ENGINE} is saturated: {how}",
            pace.saturate_s / len(_SATURATION),
            Action.FAULT,
            SATURATED_ENGINE,
            {"saturate": {"mode": mode}},
        )
        for key, how, mode in _SATURATION
    )


SATURATION_KEYS: Final = tuple(key for key, _, _ in _SATURATION)


def expected_seconds(script: tuple[Step, ...]) -> float:
    """The longest time a script can take, without what its actions themselves take."""
    return sum(step.seconds for step in script)
