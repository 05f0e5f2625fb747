"""Long seeded walks through the machine of test_view_machine.py, its steps weighted as they come in production.

Rules drawn uniformly seldom line up far enough: what these walks found at first (own events dropped after a restart of
the scorer, an expired own load subtracted from the others', a zombie's record hidden by compaction), it did not.
"""

import random

from tests.routing.test_view_machine import Exactness
from tests.routing.view_world import NAMES

WALKS, STEPS = 150, 60


def step(world: Exactness, rng: random.Random) -> None:
    """One step of a walk, each kind about as often as in production, faults far more often."""
    who, whose = rng.randrange(2), rng.choice(NAMES)
    kinds = ["ok", "ok", "ok", "http_error", "saturated", "client_gone"]
    steps = {
        lambda: world.answer_at_once(who, rng.choice(kinds)): 6,
        lambda: world.start_request(who, rng.randrange(1, 6000)): 3,
        lambda: world.first_token(who, rng.randrange(50), rng.choice([30.0, 400.0, 2_500.0])): 2,
        lambda: world.finish(who, rng.randrange(50), rng.choice(kinds), rng.random() < 0.5): 2,
        lambda: world.tick(who): 3,
        lambda: world.send(who, rng.randrange(1, 4), rng.random() < 0.6): 3,
        lambda: world.acknowledge(who, rng.random() < 0.5): 3,
        lambda: world.read(who, rng.randrange(1, 5)): 3,
        lambda: world.restart_router(who, rng.randrange(20)): 0.3,
        lambda: world.see_engine(whose, rng.choice(["gauges"] * 5 + ["ready", "not_ready", "joined"])): 2,
        lambda: world.score(rng.randrange(1, 7)): 4,
        lambda: world.publish(rng.choice(["taken"] * 3 + ["answer lost", "lost"])): 3,
        lambda: world.score_publish_and_read(rng.randrange(1, 3), rng.choice([(0,), (1,), (0, 1)])): 8,
        lambda: world.checkpoint(rng.choice(["committed"] * 2 + ["not committed", "half written", "lost"])): 3,
        lambda: world.restart_scorer(rng.random() < 0.5, rng.random() < 0.5): 2,
        lambda: world.zombie_goes_on(rng.randrange(4), rng.random() < 0.5): 2,
        lambda: world.time_goes_on(rng.choice([1.0, 30.0, 120.0, 700.0, 2_500.0])): 5,
    }
    rng.choices(list(steps), list(steps.values()))[0]()


def walk(seed: int) -> None:
    rng, world = random.Random(seed), Exactness()
    world.every_instance_is_known()
    for _ in range(STEPS):
        step(world, rng)
        world.each_view_is_the_newest_snapshot_and_the_own_events_it_lacks()
        world.own_load_is_what_the_leases_say()
        world.the_others_load_is_what_the_log_says_of_them()
        world.the_scorer_has_the_pure_fold_of_what_it_has_read()
    world.teardown()


def test_views_and_states_stay_exact_on_long_walks() -> None:
    for seed in range(WALKS):
        try:
            walk(seed)
        except AssertionError as error:
            raise AssertionError(f"walk {seed}") from error
