"""What the routers say of themselves: `/fleet` and `/metrics`, read a few times per second."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evenload.cli.http import get

TIMEOUT_S: Final = 0.7  # a router that takes longer is shown as not answering
_LINE: Final = re.compile(r"^(evenload_router_(?:choices_total|telemetry))\{([^}]*)\} (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class EngineView:
    """What one router believes of one engine."""

    score: float
    ttft_term: float
    error_term: float
    queue_term: float
    in_flight: int
    ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class RouterView:
    """One router at one moment.

    Attributes:
        view: `fresh`, `stale` or `local only`.
        snapshot_age_ms: Age of the stalest partition's newest snapshot.
        engines: What it believes, by engine.
        choices: Attempts so far by (engine, reason of the choice).
        telemetry: Counts of what became of its events, by state.
    """

    view: str
    snapshot_age_ms: float | None
    engines: Mapping[str, EngineView]
    choices: Mapping[tuple[str, str], float] = field(default_factory=dict)
    telemetry: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """All routers of one lane at one moment, in order; None for one that does not answer."""

    at_s: float
    routers: tuple[RouterView | None, ...]

    def engine(self, name: str) -> EngineView | None:
        """What the first router that answers believes of an engine."""
        return next((r.engines[name] for r in self.routers if r is not None and name in r.engines), None)

    def in_flight(self, name: str) -> int:
        """Requests of all routers on an engine."""
        return sum(r.engines[name].in_flight for r in self.routers if r is not None and name in r.engines)


def observe(urls: Iterable[str], at_s: float) -> Sample:
    """Ask all routers, one after the other."""
    return Sample(at_s, tuple(_router(url) for url in urls))


def _router(url: str) -> RouterView | None:
    try:
        status, fleet = get(f"{url}/fleet", timeout_s=TIMEOUT_S)
        if status != 200:
            return None
        _, metrics = get(f"{url}/metrics", timeout_s=TIMEOUT_S)
        return router_view(json.loads(fleet), metrics.decode())
    except (OSError, ValueError):
        return None


def router_view(fleet: Mapping[str, Any], metrics: str) -> RouterView:
    """Pick what the demo needs from the two pages.

    Raises:
        ValueError: A page is not what a router of this version writes.
    """
    choices: dict[tuple[str, str], float] = {}
    telemetry: dict[str, float] = {}
    for line in metrics.splitlines():
        if (match := _LINE.match(line)) is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        if match[1].endswith("telemetry"):
            telemetry[labels["state"]] = float(match[3])
        else:
            choices[labels["instance"], labels["reason"]] = float(match[3])
    try:
        engines = {i["instance"]: _engine(i) for pool in fleet["pools"] for i in pool["instances"]}
        return RouterView(str(fleet["view"]), fleet["snapshot_age_ms"], engines, choices, telemetry)
    except (KeyError, TypeError) as error:
        raise ValueError(f"/fleet has no {error}") from None


def _engine(document: Mapping[str, Any]) -> EngineView:
    terms = document["terms"]
    return EngineView(
        score=document["score"],
        ttft_term=terms["ttft"],
        error_term=terms["error"],
        queue_term=terms["queue"],
        in_flight=document["in_flight"],
        ttft_ms=document["ttft_ms"],
    )


def attempts(samples: Sequence[Sample], start_s: float, end_s: float) -> dict[tuple[str, str], float]:
    """Attempts dispatched between two moments, by (engine, reason), from the routers' counters.

    A router that starts again counts from zero again; what it did between its last answer and its end is not known.
    """
    chosen = [sample for sample in samples if start_s <= sample.at_s <= end_s]
    found: dict[tuple[str, str], float] = {}
    for index in range(len(chosen[0].routers) if chosen else 0):
        before: Mapping[tuple[str, str], float] | None = None
        for sample in chosen:
            router = sample.routers[index]
            if router is None:
                continue
            if before is not None:
                restarted = sum(router.choices.values()) < sum(before.values())
                for key, count in router.choices.items():
                    found[key] = found.get(key, 0.0) + count - (0.0 if restarted else before.get(key, 0.0))
            before = router.choices
    return found


def attempt_shares(samples: Sequence[Sample], start_s: float, end_s: float) -> dict[str, float]:
    """Share of the attempts between two moments by engine; empty when there were none."""
    counts: dict[str, float] = {}
    for (engine, _), count in attempts(samples, start_s, end_s).items():
        counts[engine] = counts.get(engine, 0.0) + count
    total = sum(counts.values())
    return {engine: count / total for engine, count in counts.items()} if total else {}
