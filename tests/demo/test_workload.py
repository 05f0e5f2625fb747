"""Trace readers, rescaling, and the shipped sample."""

from pathlib import Path
from random import Random
from statistics import mean, pstdev

import pytest

from evenload.demo.synthetic import csv_text, sample
from evenload.demo.workload import SAMPLE, Arrival, Trace, TraceError, read_trace


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read(path: Path) -> Trace:
    return read_trace(path, Random(1))


def even(count: int = 100, gap_s: float = 1.0) -> Trace:
    return Trace(tuple(Arrival(i * gap_s, 100 + i, 10 + i) for i in range(count)), count * gap_s, ("even",))


def test_azure_rows_keep_their_100_ns_digits(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    trace = read(write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows))
    assert [(a.prompt_tokens, a.output_tokens) for a in trace.arrivals] == [(374, 44), (396, 109)]
    assert trace.arrivals[0].at_s == 0.0
    assert trace.arrivals[1].at_s == pytest.approx(4.314579, abs=1e-6)


def test_servegen_and_other_csv_columns_are_found_by_name(tmp_path: Path) -> None:
    trace = read(write(tmp_path, "client,output,prompt,arrival\n9,3,100,0.5\n9,4,200,2.5\n"))
    assert trace.arrivals == (Arrival(0.0, 100, 3), Arrival(2.0, 200, 4))


def test_mooncake_rows_on_the_grid_are_jittered_inside_their_cell_and_it_says_so(tmp_path: Path) -> None:
    rows = "".join(
        f'{{"timestamp": {3000 * (i // 10) - (i > 50)}, "input_length": {i + 1}, "output_length": 5}}\n'
        for i in range(200)
    )
    path = write(tmp_path, rows, "t.jsonl")
    trace = read(path)
    assert trace == read(path), "the same seed jitters the same"
    assert trace != read_trace(path, Random(2))
    assert any("jittered uniformly" in note for note in trace.notes)
    gaps = [b.at_s - a.at_s for a, b in zip(trace.arrivals, trace.arrivals[1:], strict=False)]
    assert min(gaps) >= 0
    assert max(gaps) < 3
    assert pstdev(gaps) > 0.1


def test_mooncake_rows_off_the_grid_stay_where_they_are(tmp_path: Path) -> None:
    rows = "".join(f'{{"timestamp": {t}, "input_length": 7, "output_length": 5}}\n' for t in (1000, 2500, 2600))
    trace = read(write(tmp_path, rows, "t.jsonl"))
    assert [a.at_s for a in trace.arrivals] == pytest.approx([0, 1.5, 1.6])
    assert len(trace.notes) == 1


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "no known trace format"),
        ("a,b,c\n1,2,3\n", 1, "no known trace format"),
        ("arrival_s,prompt_tokens,output_tokens\n", None, "no rows"),
        ("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,x,5\n", 3, "prompt tokens must be a whole number, got 'x'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10\n", 3, "too few columns"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1_0,5\n", 2, "prompt tokens must be a whole number, got '1_0'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,10,5.0\n", 2, "output tokens must be a whole number, got '5.0'"),
        ("arrival_s,prompt_tokens,output_tokens\nsoon,10,5\n", 2, "finite number of seconds from 0, got 'soon'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,10,0\n", 2, "at least 1, got 10 and 0"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,10,5\n", 2, "finite number of seconds"),
        ("arrival_s,prompt_tokens,output_tokens\n-1,10,5\n", 2, "finite number of seconds"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,10,5\n", 2, "Invalid isoformat string: 'yesterday'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68x,10,5\n", 2, "the fraction is not a number"),
        ('{"timestamp": 0, "input_length": 5}\n', 1, "'output_length' is missing"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"time\n', 2, "Invalid control character"),
        ('{"timestamp": 0, "input_length": 5.5, "output_length": 1}\n', 1, "whole numbers"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n[]\n', 2, "list indices"),
    ],
)
def test_a_malformed_trace_is_refused_with_file_line_and_reason(
    tmp_path: Path, text: str, line: int | None, reason: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:{line}:" if line else f"{path}:")
    assert reason in str(error.value)


def test_a_header_may_be_quoted_and_follow_a_byte_order_mark(tmp_path: Path) -> None:
    rows = "0,10,5\n1,20,6\n"
    plain = read(write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n" + rows))
    quoted = read(write(tmp_path, '\ufeff"arrival_s","prompt_tokens","output_tokens"\n' + rows))
    assert quoted.arrivals == plain.arrivals


def test_azure_times_may_name_their_offset_from_utc(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    times = ("2024-05-10 00:00:00.250000+00:00", "2024-05-10 02:00:01.500000+02:00", "2024-05-10 00:00:04+00:00")
    trace = read(write(tmp_path, header + "".join(f"{time},10,5\n" for time in times)))
    assert [a.at_s for a in trace.arrivals] == pytest.approx([0, 1.25, 3.75])


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read(tmp_path / "nowhere.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read(tmp_path / "b.csv")


def test_a_window_starts_at_zero_again() -> None:
    window = even().windowed(10, 5)
    assert [a.at_s for a in window.arrivals] == [0, 1, 2, 3, 4]
    assert (window.duration_s, window.rate_rps) == (5, 1.0)
    with pytest.raises(ValueError, match="no arrivals"):
        even().windowed(1000, 5)


def test_caps_are_applied_and_stated() -> None:
    capped = even().capped(prompt_tokens=150, output_tokens=20)
    assert max(a.prompt_tokens for a in capped.arrivals) == 150
    assert max(a.output_tokens for a in capped.arrivals) == 20
    assert capped.notes[1:] == (
        "prompts capped at 150 tokens (49 of 100 cut)",
        "outputs capped at 20 tokens (89 of 100 cut)",
    )


def test_compression_shortens_time_and_superposition_does_not() -> None:
    compressed = even().compressed(4)
    assert (compressed.duration_s, compressed.rate_rps) == (25, 4)
    superposed = even().superposed(4, Random(1))
    assert (superposed.duration_s, superposed.rate_rps) == (100, 4)
    assert [a.at_s for a in superposed.arrivals] == sorted(a.at_s for a in superposed.arrivals)
    assert "time compressed 4 x" in compressed.notes
    assert any("superposition of 4 copies" in note for note in superposed.notes)


@pytest.mark.parametrize("rate", [0.25, 1.0, 3.7, 60.0])
def test_a_rate_is_met_by_superposition_first(rate: float) -> None:
    trace = even().at_rate(rate, Random(1))
    assert trace.rate_rps == pytest.approx(rate)
    assert trace.duration_s <= 400 + 1e-9
    assert rate < 1 or trace.duration_s > 50


def test_the_shipped_sample_is_what_the_generator_makes() -> None:
    assert SAMPLE.read_text() == csv_text(sample())


def test_the_shipped_sample_resembles_a_conversation_trace() -> None:
    trace = read(SAMPLE)
    gaps = [b.at_s - a.at_s for a, b in zip(trace.arrivals, trace.arrivals[1:], strict=False)]
    assert len(trace.arrivals) == 2000
    assert trace.rate_rps == pytest.approx(5.5, rel=0.1)
    assert 1.05 < pstdev(gaps) / mean(gaps) < 1.5, "burstier than Poisson"
    assert mean(a.prompt_tokens for a in trace.arrivals) == pytest.approx(1155, rel=0.1)


@pytest.mark.parametrize(
    ("path", "rows", "rate"),
    [
        ("azure2023/conv.csv", 19_366, 5.53),
        ("azure2023/code.csv", 8_819, 2.57),
        ("mooncake/conversation_trace.jsonl", 12_031, 3.40),
        ("mooncake/synthetic_trace.jsonl", 3_993, 3.91),
        ("servegen/m-large_20h-21h_10rps_seed1.csv", 36_004, 10.0),
    ],
)
def test_public_traces_are_read_whole(shared_dir: Path, path: str, rows: int, rate: float) -> None:
    trace = read(shared_dir / "traces" / path)
    assert len(trace.arrivals) == rows
    assert trace.rate_rps == pytest.approx(rate, rel=0.01)
    assert any("jittered" in note for note in trace.notes) == ("conversation" in path)
