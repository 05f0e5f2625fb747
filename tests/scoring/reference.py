"""The slow and obvious way to move a state in time, to compare `damping.advance` with.

One tick after the other, however many, with an error window that looks at each bucket's own second instead of at a
ring. The terms are the package's; how time moves is not.
"""

from evenload.schemas import InstanceState
from evenload.scoring import ScoringConfig, at
from evenload.scoring.damping import raw_score

WINDOW_S = 10


def advance_naively(state: InstanceState, now_ms: int, config: ScoringConfig) -> InstanceState:
    """Return the state at `now_ms`, having visited every tick on the way."""
    new = at(state, 0, config)  # a copy: time never goes backwards
    seconds = {new.window_s - age: (new.window_s - age) % WINDOW_S for age in range(WINDOW_S)}
    counts = {second: (new.ok[index], new.err[index]) for second, index in seconds.items()}
    for tick in range(new.tick + 1, now_ms // 100 + 1):
        second = tick // 10
        if second != new.window_s:
            counts = {key: value for key, value in counts.items() if second - key < WINDOW_S}
            _fill(new, counts, second)
        new.tick = tick
        new.damped = min(raw_score(new, tick, config), new.damped + config.damping_per_s / 10)
    return new


def _fill(state: InstanceState, counts: dict[int, tuple[int, int]], second: int) -> None:
    state.window_s = second
    state.ok, state.err = [0] * WINDOW_S, [0] * WINDOW_S
    for key, (ok, err) in counts.items():
        state.ok[key % WINDOW_S], state.err[key % WINDOW_S] = ok, err
    state.ok_sum, state.err_sum = sum(state.ok), sum(state.err)
