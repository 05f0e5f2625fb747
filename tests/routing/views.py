"""Instance views made by hand, for tests of policies."""

from evenload.routing import InstanceView
from evenload.schemas import InstanceState
from evenload.scoring import DEFAULT, ScoringConfig

NOW_MS = 1_000_000


def state(name: str, **known: object) -> InstanceState:
    fields = {"tick": NOW_MS // 100, "log_ms": NOW_MS, "live_at_ms": NOW_MS, "window_s": NOW_MS // 1000} | known
    return InstanceState(instance=name, **fields)  # type: ignore[arg-type]


def view(
    name: str, score: float = 100.0, in_flight: int = 0, config: ScoringConfig = DEFAULT, **known: object
) -> InstanceView:
    return InstanceView(instance=name, state=state(name, **known), config=config, score=score, in_flight=in_flight)


class Draws:
    """Uniforms from a list."""

    def __init__(self, *draws: float) -> None:
        self._draws = iter(draws)

    def random(self) -> float:
        return next(self._draws)
