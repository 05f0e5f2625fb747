"""What `evenload sim` says to a command line that makes no sense: the reason, exit code 2, and nothing has run."""

import json
from pathlib import Path

import pytest

from evenload.cli.app import main

ROWS = "arrival_s,prompt_tokens,output_tokens\n0,10,10\n1,20,20\n2,30,5\n"
PAIR = ("--scenarios", "s1-u50", "--policies", "random,least-connections", "--seeds", "1", "--duration", "5", "-j", "1")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without traces, where results may be kept."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("EVENLOAD_TRACES", raising=False)
    return folder


def sim(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["sim", *arguments])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--duration", "0"), "duration: give a positive number of seconds, got 0"),
        (("--duration", "-5"), "duration: give a positive number of seconds, got -5"),
        (("--duration", "nan"), "duration: give a positive number of seconds, got nan"),
        (("--duration", "inf"), "duration: give a positive number of seconds, got inf"),
        (("--duration", "1e9"), "at most 2000000 can be simulated"),
        (("--rate", "1e9"), "at most 2000000 can be simulated"),
        (("--rate", "0.001", "--duration", "5"), "s1-u50: 0.005 requests in 5 s"),
        (("--rate", "nan"), "positive; got [nan]"),
        (("--seeds", ","), "--seeds ','"),
        (("--seeds", "0"), "--seeds '0'"),
        (("--seeds", "1,-3"), "--seeds '1,-3'"),
        (("--seeds", "99999999999"), "within 10000 of each other"),
        (("--traces", "nowhere"), "--traces nowhere: no such folder"),
    ],
)
def test_nonsense_is_refused_with_its_reason(
    arguments: tuple[str, ...], reason: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sim("run", "s1-u50", *arguments) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert not said.out
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--report", "file/in"), "file/in: cannot be made"),
        (("--report", "file"), "file: cannot be made: File exists"),
        (("--write", "."), ".: is a folder; name a file"),
        (("--write", "page"), "page: give the file an ending (.md)"),
        (("--quick", "--grid", "full"), "--quick and --grid full are two grids: give one"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(
    arguments: tuple[str, ...], reason: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "file").write_text("")
    assert sim("compare", *PAIR, *arguments) == 2
    assert reason in capsys.readouterr().err
    assert [path.name for path in elsewhere.iterdir()] == ["file"]


def test_json_is_json_though_figures_are_infinite(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,20,1\n")  # hence no TPOT
    assert sim("compare", *PAIR, "--rate", "2", "--workload", "mine.csv", "--json") == 0

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["cells"][0]["figures"]["tpot_p99_ms"] == "nan"
    assert {"scenarios", "cells", "bars", "bars_missed"} <= set(found)


def test_the_same_seed_twice_is_one_seed(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "mine.csv").write_text(ROWS)
    asked = ("--duration", "5", "--rate", "2", "--workload", "mine.csv", "--json", "--seeds", "2,2,1")
    assert sim("run", "s1-u50", *asked) == 0
    assert [cell["seed"] for cell in json.loads(capsys.readouterr().out)["cells"]] == [1, 2]


def test_stand_ins_and_a_duration_that_is_not_used_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim("run", "s7-step-r1", "--duration", "5", "--rate", "0.5") == 0
    said = capsys.readouterr().err
    assert "azure-conv: not in" in said
    assert "--duration would cut off a fault or what is measured, and is not used in s7-step-r1" in said


def test_a_quick_comparison_without_any_of_its_bars_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--quick", "--scenarios", "s1-u85", "--seeds", "1", "--duration", "5", "--rate", "2", "-j", "1")
    assert sim("compare", *few, "--policies", "random") == 2
    assert "none of the quick comparison's bars is about these cells" in capsys.readouterr().err
    assert sim("compare", *few, "--policies", "predictive,least-connections") in {0, 1}
    assert "of the quick comparison's 2 bars hold" in capsys.readouterr().err
