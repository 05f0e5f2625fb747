"""A router's host whose wall clock is an hour off: it is asked once, and forgotten with the first snapshot."""

import pytest

from evenload.router.build import Router, build
from evenload.routing.leases import Counts
from evenload.schemas import Outcome, SnapshotBatch, encode
from evenload.scoring import apply, fresh, snapshot
from evenload.settings import Settings
from evenload.settings.scoring import scoring_configs

HOUR_S = 3_600.0
T0 = 1_700_000_000_000
SETTINGS = Settings.model_validate(
    {
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "pools": [{"name": "p", "models": ["m"], "instances": [{"id": "a", "url": "http://127.0.0.1:1"}]}],
    }
)
CONFIG = scoring_configs(SETTINGS)["a"]


def router(off_s: float) -> Router:
    return build(SETTINGS, {}, wall_s=lambda: T0 / 1000 + off_s)


def snapshots(partition: int, now_ms: int) -> SnapshotBatch:
    state = apply(fresh("a", T0, CONFIG), Outcome(instance="a", kind="ok"), T0, CONFIG)
    return SnapshotBatch(
        v=1,
        partition=partition,
        as_of=3,
        now_ms=now_ms,
        linger_ms=20,
        sequences={},
        snapshots=[snapshot(state, now_ms, CONFIG)],
    )


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S])
async def test_what_a_router_believes_does_not_depend_on_its_wall_clock(off_s: float) -> None:
    right, wrong = router(0.0).dispatcher, router(off_s).dispatcher
    partition = next(iter(right.view.offsets(("a",))))
    for one in (right, wrong):
        one.clock = lambda: 1_000.0  # the durations are the same for both
        one.take_snapshots(0, snapshots(partition, T0 + 500))
        one.tell(Outcome(instance="a", kind="http_error"))
    for later_ms in (0, 400, 5_000, 20_000):
        now_ms = T0 + 500 + later_ms
        states = [encode(one.view.read("a", Counts(), now_ms).state) for one in (right, wrong)]
        assert states[0] == states[1]
    assert [one.log_clock.now_ms(3_000.0) for one in (right, wrong)] == [T0 + 2_500] * 2


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S])
async def test_without_any_snapshot_only_durations_matter(off_s: float) -> None:
    dispatcher = router(off_s).dispatcher
    start_ms = int(T0 + off_s * 1000)
    assert dispatcher.view.read("a", Counts(), start_ms).score == pytest.approx(30.0, abs=2.0)
    assert dispatcher.view.read("a", Counts(), start_ms + 2_000).score == pytest.approx(60.0, abs=2.0)
    dispatcher.tell(Outcome(instance="a", kind="saturated", retry_after_ms=4_000.0))
    view = dispatcher.view
    assert view.read("a", Counts(), start_ms + 3_500).state.cooling_until_ms > start_ms + 3_500
    assert view.read("a", Counts(), start_ms + 9_000).state.cooling_until_ms < start_ms + 9_000
