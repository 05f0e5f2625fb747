"""The list of ablations names parts, scenarios and figures that exist."""

import inspect

import pytest

from evenload.bench.ablations import ABLATIONS, Ablation, commands
from evenload.routing.predictive_constants import Constants
from evenload.sim import metrics
from evenload.sim.policies import make_policy
from evenload.sim.scenarios import SCENARIOS


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.spec)
def test_an_ablation_switches_something_off_that_is_on(ablation: Ablation) -> None:
    without = make_policy(ablation.spec)
    assert repr(without) != repr(make_policy("predictive"))
    assert set(ablation.scenarios) <= set(SCENARIOS)
    assert f'"{ablation.figure}"' in inspect.getsource(metrics)


def test_every_part_that_has_a_switch_is_in_the_list() -> None:
    named = {item.partition("=")[0] for one in ABLATIONS for item in one.spec.partition(":")[2].split(",")}
    shapes = {"long_tokens", "base_excess", "token_least", "retest_after_ms", "retest_growth"}  # of parts in the list
    assert named | shapes == set(Constants.__struct_fields__)
    assert len(commands()) == len(ABLATIONS)
