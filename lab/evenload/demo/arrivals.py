"""The demo's workload: a trace at the asked rate, with capped sizes, long enough, in a file that every lane replays."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from evenload.demo.workload import SAMPLE, Trace, read_trace
from evenload.sim.presets import preset

PROMPT_TOKENS_MAX: Final = 4000  # larger ones take longer than a demo has patience for
OUTPUT_TOKENS_MAX: Final = 100  # every token is a message through three processes on the machine that runs it all
ALONE_TTFT_MS: Final = 140.0  # the mean prompt's on an idle engine; with its neighbours' tokens it is about 200


def prepare(path: Path | None, rate_rps: float, seed: int, seconds: float) -> Trace:
    """Read a trace and fit it to the demo.

    Args:
        path: The file; None is the shipped sample.
        rate_rps: Mean arrivals per second.
        seed: For the rotation of superposed copies.
        seconds: Length that it must have at least.

    Raises:
        TraceError: The trace cannot be used.
        ValueError: The rate is not positive.
    """
    rng = Random(seed)
    trace = read_trace(path or SAMPLE, rng).at_rate(rate_rps, rng)
    trace = trace.windowed(0.0, seconds) if trace.duration_s > seconds else repeated(trace, seconds)
    return trace.capped(prompt_tokens=PROMPT_TOKENS_MAX, output_tokens=OUTPUT_TOKENS_MAX)


def repeated(trace: Trace, seconds: float) -> Trace:
    """The trace as often as it takes to last so long."""
    times = int(seconds / trace.duration_s) + 1
    arrivals = tuple(
        replace(arrival, at_s=arrival.at_s + round_ * trace.duration_s)
        for round_ in range(times)
        for arrival in trace.arrivals
    )
    notes = trace.notes if times == 1 else (*trace.notes, f"repeated {times} times")
    return Trace(arrivals, times * trace.duration_s, notes)


def write(trace: Trace, path: Path) -> Path:
    """Write the arrivals as a CSV that `read_trace` reads."""
    lines = (f"{a.at_s:.4f},{a.prompt_tokens},{a.output_tokens}\n" for a in trace.arrivals)
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(lines), encoding="ascii")
    return path


def fitting_speed(trace: Trace, preset_name: str) -> float:
    """The engines' speed at which this trace's prompts take `ALONE_TTFT_MS` on the average when nothing else runs."""
    engine = preset(preset_name)
    sizes = [arrival.prompt_tokens for arrival in trace.arrivals]
    alone_ms = [engine.step_ms(decoders=0, prefill_tokens=n, kv_read=0, attention_work=n * n / 2) for n in sizes]
    return round(sum(alone_ms) / len(alone_ms) / ALONE_TTFT_MS, 2)
