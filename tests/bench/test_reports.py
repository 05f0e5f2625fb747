"""Plots, the HTML report and the Markdown page, from results made by hand."""

import re
from pathlib import Path, PurePosixPath

import pytest

from evenload.bench.bars import judge
from evenload.bench.document import document
from evenload.bench.facts import Facts
from evenload.bench.grid import Cell
from evenload.bench.page import page
from evenload.bench.plots import Plot, plots
from evenload.bench.tables import lines
from tests.bench.made import LEAST, ME, ORACLE, cell

FACTS = Facts("core", "abc", "1 core", 3, (1, 2), 60.0, 3600.0, ("azure-conv",))
PNG = b"\x89PNG\r\n\x1a\n"


def results() -> list[Cell]:
    """Two loads, two stalenesses, two fleets of routers, a step: the subject misses T95 and nothing else of S7."""
    found: list[Cell] = []
    for seed in (1, 2):
        for policy, p99_ms in ((ME, 100.0), (LEAST, 300.0), (ORACLE, 90.0)):
            for name in ("s1-u50", "s1-u85", "s2-u85", "s2-u95", "s10-stale-250", "s10-stale-1000", "s11-r1", "s11-r8"):
                found.append(cell(name, policy, seed, ttft_p99_ms=p99_ms, goodput_rps=1.0, attainment=1.0))
            for name in ("s7-step", "headline-sick"):
                found.append(cell(name, policy, seed, ttft_p99_ms=p99_ms, t95_s=9.0, harmed_share=0.0))
    return found


def test_the_page_shows_misses_as_plainly_as_passes_and_every_cell() -> None:
    cells = results()
    text = document(cells, judge(cells), [Plot("regret", "Regret.", PNG)], FACTS, PurePosixPath("docs/benchmark.md"))
    assert re.search(r"\| S7 \| step, 4 routers: T95 \| ≤ 0.6 s \| 8.5 s \| \*\*miss\*\* \|", text)
    assert re.search(r"\| S7 \| step, 4 routers: requests harmed \| ≤ 0.3 % \| 0 % \| pass \|", text)
    assert "commit abc on 1 core" in text
    assert "![Regret.](benchmark/regret.png)" in text
    for name in {run.case.scenario.name for run in cells}:
        assert f"### {name}" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert all(len({line.count("|") - line.count("\\|") for line in table}) == 1 for table in tables)


def test_the_report_is_one_file_and_says_nothing_unescaped() -> None:
    cells = results()
    text = page(cells, judge(cells), [Plot("x", "a < b", PNG)], FACTS)
    assert "data:image/png;base64," in text
    assert "a &lt; b" in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert '<td class="miss">miss</td>' in text


def test_columns_of_words_are_aligned_at_the_left() -> None:
    rows = [{"policy": "a", "p99": "1", "note": "x"}, {"policy": "bb", "p99": "100", "note": "yyy"}]
    assert lines(rows, left=("note",)) == ["policy  p99  note", "a         1  x   ", "bb      100  yyy "]


def test_every_plot_that_the_results_allow_is_drawn_small_and_alike_each_time() -> None:
    first, again = plots(results()), plots(results())
    assert first == again
    names = {plot.name for plot in first}
    assert {"p99-load", "knee", "p99-staleness", "p99-replicas", "regret", "headline", "share-s7", "ttft-s7"} <= names
    for plot in first:
        assert plot.png.startswith(PNG)
        assert len(plot.png) < 100_000


def test_results_of_one_cell_have_a_distribution_and_no_lines() -> None:
    assert [plot.name for plot in plots([cell("s1-u85", ME, ttft_p99_ms=1.0)])] == ["ttft-s1"]


def test_a_report_without_matplotlib_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evenload.cli.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(SystemExit) as ended:
        main(["sim", "compare", "--report", "out"])
    assert ended.value.code == 3
    assert "pip install 'evenload[report]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_dry_run_tells_the_cost_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evenload.cli.app import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["sim", "compare", "--grid", "core", "--dry-run", "-j", "2"])
    assert not ended.value.code
    text = capsys.readouterr().out
    assert "s7-step-r1" in text
    assert re.search(r"\d+ runs, 0 kept; \d+ CPU seconds to go: \d+ minutes with 2 processes", text)
    assert not list(tmp_path.iterdir())
