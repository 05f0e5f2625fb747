"""Clocks that jump by an hour: whichever it is, states stay the fold of the log, and log time never goes back."""

import pytest

from evenload.schemas import Batch, Event, FirstToken, Outcome, RouterLoad, decode_state, encode
from evenload.scorer.core import Options, PartitionScorer
from evenload.scoring import DEFAULT, ScoringConfig
from tests.scorer.traffic import pure_fold

T0 = 1_800_000_000_000
HOUR_MS = 3_600_000


def config_of(_: str) -> ScoringConfig:
    return DEFAULT


def record(seq: int, *events: Event, view_ms: int = 0) -> bytes:
    return encode(Batch(v=1, producer="r", incarnation=7, seq=seq, events=list(events), view_ms=view_ms))


def jumping_log(jump_ms: int, view_skew_ms: int = 0) -> list[tuple[int, int, bytes]]:
    """A record every 100 ms; after the 20th the broker's clock is another one."""
    log = []
    for offset in range(40):
        at_ms = T0 + 100 * offset + (jump_ms if offset >= 20 else 0)
        kind: Event = Outcome(instance="a", kind="http_error" if offset % 3 else "ok")
        token = FirstToken(instance="b", ttft_ms=50.0 * offset)
        load = RouterLoad(instance="a", in_flight=offset % 5)
        log.append((offset, at_ms, record(offset, kind, token, load, view_ms=at_ms + view_skew_ms)))
    return log


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_states_are_the_fold_and_snapshots_go_forwards_over_a_jump_of_the_brokers_clock(jump_ms: int) -> None:
    log = jumping_log(jump_ms)
    part = PartitionScorer(0, Options(), config_of)
    published = []
    for offset, at_ms, data in log:
        part.on_record(offset, at_ms, data, 100.0 * offset)
        published += part.snapshots(100.0 * offset)
    assert {n: encode(s) for n, s in part.states.items()} == {
        n: encode(s) for n, s in pure_fold(log, config_of).items()
    }
    times = [batch.now_ms for batch in published]
    assert times == sorted(times)
    assert part.states["a"].successes + part.states["a"].errors == 40
    assert part.states["b"].first_tokens == 40
    assert (part.counts.duplicates, part.counts.dead_letters) == (0, {})


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("crash_at", [10, 19, 20, 21, 35])
def test_a_restart_around_a_jump_of_the_brokers_clock_ends_with_identical_bytes(jump_ms: int, crash_at: int) -> None:
    log = jumping_log(jump_ms)
    first = PartitionScorer(0, Options(), config_of)
    for offset, at_ms, data in log[:crash_at]:
        first.on_record(offset, at_ms, data, 0.0)
    checkpoint = first.checkpoint(0.0, force=True)
    assert checkpoint is not None
    states = {name: decode_state(data) for name, data in checkpoint.states.items()}
    second = PartitionScorer(0, Options(), config_of, states=states, position=crash_at - 6)
    for offset, at_ms, data in log[crash_at - 5 :]:
        second.on_record(offset, at_ms, data, 0.0)
    assert {n: encode(s) for n, s in second.states.items()} == {
        n: encode(s) for n, s in pure_fold(log, config_of).items()
    }


def test_an_hour_that_the_brokers_clock_leaps_is_an_hour_of_silence() -> None:
    part = PartitionScorer(0, Options(), config_of)
    part.on_record(
        0, T0, record(0, Outcome(instance="a", kind="http_error"), RouterLoad(instance="a", in_flight=9)), 0.0
    )
    part.on_record(1, T0 + HOUR_MS, record(1, Outcome(instance="a", kind="ok")), 50.0)
    (batch,) = part.snapshots(60.0)
    (seen,) = batch.snapshots
    assert (seen.state.err_sum, seen.state.ok_sum, seen.replicas) == (0, 1, 0)
    assert (seen.state.errors, seen.state.successes) == (1, 1)


@pytest.mark.parametrize("skew_ms", [HOUR_MS, -HOUR_MS])
def test_a_producers_clock_that_is_an_hour_off_changes_no_state(skew_ms: int) -> None:
    right, wrong = pure_fold(jumping_log(0), config_of), pure_fold(jumping_log(0, skew_ms), config_of)
    assert {n: encode(s) for n, s in right.items()} == {n: encode(s) for n, s in wrong.items()}


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_scorers_wall_clock_is_not_asked(jump_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[bytes]:
        part = PartitionScorer(0, Options(), config_of)
        said = []
        for offset, at_ms, data in jumping_log(0):
            part.on_record(offset, at_ms, data, 100.0 * offset)
            said += [encode(batch) for batch in part.snapshots(100.0 * offset)]
        return said

    before = run()
    monkeypatch.setattr("time.time", lambda: (T0 + jump_ms) / 1000)
    assert run() == before
