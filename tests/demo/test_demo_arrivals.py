from pathlib import Path
from random import Random

import pytest

from evenload.demo.arrivals import (
    ALONE_TTFT_MS,
    OUTPUT_TOKENS_MAX,
    PROMPT_TOKENS_MAX,
    fitting_speed,
    prepare,
    repeated,
    write,
)
from evenload.demo.workload import Arrival, Trace, TraceError, read_trace
from evenload.sim.presets import preset


@pytest.mark.parametrize("rate_rps", [3.0, 15.0, 40.0])
def test_the_sample_gets_the_asked_rate_for_the_whole_time(rate_rps: float) -> None:
    trace = prepare(None, rate_rps, 1, 300.0)
    assert trace.arrivals[-1].at_s > 290
    asked = [a for a in trace.arrivals if a.at_s < 300]
    assert len(asked) / 300 == pytest.approx(rate_rps, rel=0.15)  # it has bursts
    assert max(a.prompt_tokens for a in asked) <= PROMPT_TOKENS_MAX
    assert max(a.output_tokens for a in asked) <= OUTPUT_TOKENS_MAX
    assert any("capped" in note for note in trace.notes)


def test_what_is_written_is_what_every_lane_reads(tmp_path: Path) -> None:
    trace = prepare(None, 15.0, 1, 30.0)
    back = read_trace(write(trace, tmp_path / "arrivals.csv"), Random(0))
    first_s = trace.arrivals[0].at_s
    assert [(a.prompt_tokens, a.output_tokens) for a in back.arrivals] == [
        (a.prompt_tokens, a.output_tokens) for a in trace.arrivals
    ]
    assert [a.at_s for a in back.arrivals] == pytest.approx([a.at_s - first_s for a in trace.arrivals], abs=1e-3)


def test_a_short_trace_is_repeated_and_says_so() -> None:
    trace = repeated(Trace((Arrival(0.5, 10, 10),), 2.0, ()), 5.0)
    assert [a.at_s for a in trace.arrivals] == [0.5, 2.5, 4.5]
    assert trace.notes == ("repeated 3 times",)


def test_the_engines_speed_fits_the_prompts() -> None:
    trace = Trace((Arrival(0.0, 1000, 10),), 1.0, ())
    speed = fitting_speed(trace, "l40s-8b")
    alone_ms = preset("l40s-8b").step_ms(decoders=0, prefill_tokens=1000, kv_read=0, attention_work=500_000)
    assert alone_ms / speed == pytest.approx(ALONE_TTFT_MS, rel=0.01)


def test_a_bad_trace_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,many,44\n")
    with pytest.raises(TraceError, match=r"bad\.csv:2"):
        prepare(path, 15.0, 1, 30.0)
