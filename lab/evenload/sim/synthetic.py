"""Stand-ins for the public traces: rows by distribution, for use without the files.

Sizes are log-normal with the median and the 99th percentile of the trace, arrivals a Poisson process whose rate is
modulated between two levels so that gaps have about the trace's coefficient of variation. Conversations share prefixes:
a user's next prompt is the last one and something new. Figures on these are not figures on the traces; tables say which
was used.
"""

from collections.abc import Callable
from math import exp, log
from random import Random
from typing import NamedTuple

from evenload.sim.jobs import HASH_TOKENS, Row

_Z99 = 2.3263478740408408
ROWS = 12_000


class Shape(NamedTuple):
    """What a trace looks like: mean arrivals per second, burstiness of their rate, p50 and p99 of the sizes.

    Attributes:
        busy: rate in busy periods over the mean rate; 1 is a Poisson process.
        busy_s: mean length of busy periods.
        conversation: share of requests that continue an earlier one; 0 shares no prefixes.
    """

    rate_rps: float
    busy: float
    busy_s: float
    prompt: tuple[float, float]
    output: tuple[float, float]
    conversation: float = 0.0


SHAPES: dict[str, Shape] = {
    "azure-conv": Shape(5.53, 1.3, 20.0, (1020, 4142), (129, 601)),
    "azure-code": Shape(2.57, 20.0, 2.0, (1469, 7436), (13, 251)),
    "deepseek-r1": Shape(5.0, 1.5, 20.0, (355, 19_195), (462, 7362)),
    "m-large": Shape(10.0, 2.5, 10.0, (609, 3885), (33, 589)),
    "mooncake-conversation": Shape(3.4, 1.2, 20.0, (6909, 85_400), (350, 1119), 0.6),
    "mooncake-synthetic": Shape(3.91, 1.0, 20.0, (11_587, 66_456), (69, 768), 0.7),
}


def rows(name: str, seed: int = 20_260) -> list[Row]:
    """Return the stand-in for a trace.

    Raises:
        ValueError: no such trace.
    """
    if name not in SHAPES:
        raise ValueError(f"no workload {name!r}; there are {', '.join(SHAPES)}")
    shape = SHAPES[name]
    rng = Random(f"{name}/{seed}")
    prompt, output = _sizes(shape.prompt, rng), _sizes(shape.output, rng)
    open_chats: list[tuple[int, tuple[int, ...]]] = []
    found: list[Row] = []
    hashes_made = 0
    now_s, busy, until_s = 0.0, False, 0.0
    while len(found) < ROWS:
        calm = max(0.05, (4.0 - shape.busy) / 3.0)  # busy a quarter of the time
        if now_s >= until_s:
            busy = rng.random() < 0.25
            until_s = now_s + rng.expovariate(1.0 / shape.busy_s)
        now_s += rng.expovariate(shape.rate_rps * (shape.busy if busy else calm))
        tokens = prompt()
        shared: tuple[int, ...] = ()
        if shape.conversation and open_chats and rng.random() < shape.conversation:
            before, shared = open_chats.pop(int(rng.random() * len(open_chats)))
            tokens = min(int(shape.prompt[1]), before + max(32, tokens // 8))
        fresh = tokens // HASH_TOKENS - len(shared) if shape.conversation else 0
        hashes = (*shared, *range(hashes_made, hashes_made + max(0, fresh)))
        hashes_made += max(0, fresh)
        if shape.conversation:
            open_chats.append((tokens, hashes))
            del open_chats[:-500]
        found.append(Row(now_s, tokens, output(), hashes))
    return found


def _sizes(p50_p99: tuple[float, float], rng: Random) -> Callable[[], int]:
    mu = log(p50_p99[0])
    sigma = (log(p50_p99[1]) - mu) / _Z99
    most = 1.3 * p50_p99[1]
    return lambda: max(1, int(min(most, exp(mu + sigma * rng.gauss(0.0, 1.0)))))
