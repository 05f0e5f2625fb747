"""Our own synthetic workload, so that the demo runs without any public trace.

It resembles a conversation trace in what matters to a balancer: log-normal sizes and arrivals in bursts. Arrivals are
Poisson with a rate that switches between calm and busy periods of exponential length (a two-state Markov-modulated
Poisson process); the mean is about 5.5 requests/s.

    python -m evenload.demo.synthetic > lab/evenload/demo/data/sample.csv
"""

import sys
from math import log
from random import Random
from typing import Final

from evenload.demo.workload import Arrival

SEED: Final = 20260
ROWS: Final = 2000

_CALM_RPS, _BUSY_RPS = 4.0, 9.0
_CALM_S, _BUSY_S = 20.0, 8.6  # mean lengths of the periods
_PROMPT_MEDIAN, _PROMPT_SIGMA, _PROMPT_MAX = 850.0, 0.75, 8000
_OUTPUT_MEDIAN, _OUTPUT_SIGMA, _OUTPUT_MAX = 129.0, 0.9, 1000


def sample(rows: int = ROWS, seed: int = SEED) -> tuple[Arrival, ...]:
    """The arrivals; times are rounded to milliseconds, as they are in the file."""
    rng = Random(seed)
    arrivals: list[Arrival] = []
    now_s, busy = 0.0, False
    until_s = rng.expovariate(1 / _CALM_S)
    while len(arrivals) < rows:
        now_s += rng.expovariate(_BUSY_RPS if busy else _CALM_RPS)
        if now_s >= until_s:
            # The process has no memory: what is left of the gap is drawn again at the new rate.
            now_s, busy = until_s, not busy
            until_s = now_s + rng.expovariate(1 / (_BUSY_S if busy else _CALM_S))
            continue
        prompt = min(_PROMPT_MAX, max(16, round(rng.lognormvariate(log(_PROMPT_MEDIAN), _PROMPT_SIGMA))))
        output = min(_OUTPUT_MAX, max(2, round(rng.lognormvariate(log(_OUTPUT_MEDIAN), _OUTPUT_SIGMA))))
        arrivals.append(Arrival(round(now_s, 3), prompt, output))
    return tuple(arrivals)


def csv_text(arrivals: tuple[Arrival, ...]) -> str:
    """The sample file."""
    rows = (f"{a.at_s:.3f},{a.prompt_tokens},{a.output_tokens}\n" for a in arrivals)
    return "arrival_s,prompt_tokens,output_tokens\n" + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(csv_text(sample()))
