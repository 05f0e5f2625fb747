"""The auditor verifies what the production code did, and notices whatever was changed afterwards."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from evenload.audit.story import tell
from evenload.router.pool import Place
from evenload.router.ports import Ask
from evenload.routing import POLICIES
from evenload.schemas import Decision, FirstToken, Membership, Outcome, decode_batch, decode_decision, encode
from evenload.scoring import ScoringConfig
from tests.audit.world import World, audit


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_snapshot_and_decision_of_real_components_is_verified(policy: str) -> None:
    for seed in range(3):
        world = World(policy, seed)
        world.run(400)
        report = audit(world)
        assert report.first_difference is None, report.first_difference
        assert report.exit_code == 0
        assert not report.unverifiable
        assert report.counts["decision", "verified"] == len(world.decisions) > 100
        assert report.counts["snapshot", "verified"] > 50


@pytest.mark.parametrize("policy", ["predictive", "peak-ewma-decay", "health-ramp"])
def test_decisions_with_weights_and_reserves_are_verified(policy: str) -> None:
    places = {"a": Place(weight=3.0), "c": Place(weight=0.5, priority=1)}
    reserved = joined = 0
    for seed in range(3):
        world = World(policy, seed, places, spill_over_ms=2_000.0)
        world.run(400)
        report = audit(world)
        assert report.first_difference is None, report.first_difference
        assert report.counts["decision", "verified"] == len(world.decisions) > 100
        reasons = [one.candidates[2].excluded for one in world.decisions]
        reserved += reasons.count("reserve")
        joined += reasons.count("")
    assert reserved > 10
    assert joined > 10


def test_a_forged_weight_priority_or_limit_is_noticed() -> None:
    places = {"a": Place(weight=3.0), "c": Place(priority=1)}
    forgeries: list[Callable[[Decision], Decision]] = [
        lambda one: replace(one, spill_over_ms=1e9),
        lambda one: replace(one, spill_over_ms=0.0),
        lambda one: replace(one, candidates=[replace(c, priority=0) for c in one.candidates]),
        lambda one: replace(one, candidates=[replace(c, weight=1.0) for c in one.candidates]),
    ]
    for forge in forgeries:
        world = World("peak-ewma-decay", 4, places, spill_over_ms=2_000.0)
        world.run(300)
        assert audit(world).exit_code == 0
        world.decisions[:] = [forge(one) for one in world.decisions]
        assert audit(world).exit_code == 1


def outage(world: World, seconds: int) -> None:
    """The scorer dies while "a" is not ready; the log goes on, and "a" answers what it is asked."""
    dispatcher = world.dispatcher
    dispatcher.tell(Membership(instance="a", change="not_ready", cause="health_503"))
    world.deliver()
    world.publish(("a", "b", "c"))
    for number in range(20 * seconds):
        world.mono_ms += 50.0
        ask = Ask(f"out-{number}", "m", 100, True, "chat/completions")
        attempt = dispatcher.choose(ask, (), 0)
        if number % 10 == 0:
            attempt.finish(
                "http_error",
                status=500,
                cause="",
                retry_after_ms=None,
                ttft_ms=None,
                duration_ms=1.0,
                output_tokens=0,
            )
            attempt = dispatcher.choose(ask, (attempt.instance,), 1)
        world.running.append(attempt)
        while len(world.running) > 3:
            world.end(world.running.pop(0))
        if number % 5 == 0:
            world.deliver()
    world.deliver()
    world.decisions += [decode_decision(encode(decided.record())) for decided in world.records]
    world.records.clear()


def test_decisions_on_a_readiness_that_nobody_confirms_are_verified_and_forgeries_noticed() -> None:
    world = World("peak-ewma-decay", 6)
    world.run(100)
    before = len(world.decisions)
    outage(world, 40)
    reasons = [[c.excluded for c in one.candidates] for one in world.decisions[before:]]
    told = {of_a for of_a, _, _ in reasons}
    assert told >= {"not_ready", "doubtful", "", "tried"}, "bound, doubted, answered, and asked again"
    tested = [index for index, one in enumerate(reasons) if "retest" in one]
    assert tested
    report = audit(world)
    assert report.first_difference is None, report.first_difference
    assert report.counts["decision", "verified"] == len(world.decisions)
    number = before + tested[0]
    decision = world.decisions[number]
    waiting = [replace(c, awaiting=1) if c.instance == "a" else c for c in decision.candidates]
    for forged in (replace(decision, ordinal=decision.ordinal + 1), replace(decision, candidates=waiting)):
        world.decisions[number] = forged
        found = audit(world)
        assert found.first_difference is not None
        assert found.first_difference.reason == "exclusions differs"


def test_decisions_of_prompts_that_go_home_are_verified_and_a_forged_beginning_is_noticed() -> None:
    for seed in range(3):
        world = World("predictive", seed, conversations=20)
        world.run(400)
        home = [one for one in world.decisions if one.prefix]
        assert len(home) > 50
        report = audit(world)
        assert report.first_difference is None, report.first_difference
        assert report.counts["decision", "verified"] == len(world.decisions)
        for forged in (0, 2**48 - 1):
            world.decisions[:] = [replace(one, prefix=forged) if one.prefix else one for one in world.decisions]
            found = audit(world)
            assert found.exit_code == 1
            assert found.first_difference is not None
            assert found.first_difference.reason.startswith(("cost of", "winner"))


@pytest.fixture
def world() -> World:
    made = World("health-ramp", 5)
    made.run(300)
    return made


def test_one_changed_value_in_the_telemetry_is_noticed(world: World) -> None:
    for number, (offset, timestamp, data) in enumerate(world.telemetry[:40]):
        batch = decode_batch(data)
        for index, event in enumerate(batch.events):
            if isinstance(event, FirstToken):
                batch.events[index] = msgspec.structs.replace(event, ttft_ms=event.ttft_ms + 0.001)
                world.telemetry[number] = (offset, timestamp, encode(batch))
                report = audit(world)
                assert report.exit_code == 1
                assert report.first_difference is not None
                assert report.first_difference.recorded != report.first_difference.recomputed
                return
    pytest.fail("no first token in the log")


def test_a_dropped_record_is_a_gap(world: World) -> None:
    del world.telemetry[10]
    report = audit(world)
    assert report.gaps == ["telemetry partition 0: offsets 10 to 10 are missing"]
    assert report.exit_code == 2
    assert report.unverifiable["snapshot: telemetry before it is missing"] > 0


def test_a_forged_snapshot_is_noticed_with_both_values(world: World) -> None:
    offset, record = world.snapshots[5]
    forged = msgspec.structs.replace(record.snapshots[0], score=99.5)
    snapshots = [forged, *record.snapshots[1:]]
    world.snapshots[5] = (offset, msgspec.structs.replace(record, snapshots=snapshots))
    report = audit(world)
    assert report.exit_code == 1
    assert report.first_difference is not None
    assert (report.first_difference.reason, report.first_difference.recorded) == ("score differs", "99.5")


def test_a_changed_constant_is_noticed(world: World) -> None:
    report = audit(world, ScoringConfig(evidence="censored", ewma_alpha=0.21))
    assert report.exit_code == 1
    assert report.first_difference is not None
    assert report.first_difference.reason == "the scoring config differs"


def test_a_forged_winner_and_a_forged_draw_are_noticed(world: World) -> None:
    decision = world.decisions[50]
    other = next(one.instance for one in decision.candidates if one.instance != decision.winner)
    world.decisions[50] = msgspec.structs.replace(decision, winner=other)
    assert audit(world).exit_code == 1
    draws = [1.0 - draw for draw in decision.draws]
    world.decisions[50] = msgspec.structs.replace(decision, draws=draws, probability=0.123)
    assert audit(world).exit_code == 1


def test_a_tail_that_died_with_its_router_is_unverifiable_not_different(world: World) -> None:
    last = len(world.telemetry) - 1
    del world.telemetry[last]
    report = audit(world)
    assert report.first_difference is None
    assert report.counts["decision", "unverifiable"] + report.counts["decision", "verified"] == len(world.decisions)


def test_history_that_expired_is_unverifiable(world: World) -> None:
    del world.telemetry[:5]
    report = audit(world)
    assert report.exit_code == 0
    assert report.unverifiable["snapshot: telemetry before it has expired"] > 0


def test_the_story_of_a_request_names_candidates_reason_and_ending(world: World) -> None:
    own = {(77, 0, decode_batch(data).seq): (offset, decode_batch(data)) for offset, _, data in world.telemetry}
    ended = next(
        event.request_id
        for _, batch in own.values()
        for event in batch.events
        if isinstance(event, Outcome) and event.request_id and event.kind == "ok"
    )
    story = tell([one for one in world.decisions if one.request_id == ended], own)
    text = "\n".join(story.lines())
    assert ended in text
    assert all(f" {name}: score" in text for name in "abc")
    assert "was chosen because" in text
    assert "It ended as ok with status 200" in text
    assert msgspec.json.encode(story.data())
