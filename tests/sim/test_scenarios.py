"""The benchmark's cells: those that the texts name are there."""

from evenload.sim.jobs import Workload
from evenload.sim.presets import preset
from evenload.sim.scenarios import SCENARIOS, select


def test_the_published_model_is_a_cell() -> None:
    cell = SCENARIOS["s12-32b-conversation-x2"]
    assert [spec.machine for spec in cell.fleet] == [preset("h100x2-qwen32b")] * 16
    assert all(spec.prefix_cache for spec in cell.fleet)
    assert cell.workload == Workload(trace="mooncake-conversation", time_factor=2.0, scaling="compress")


def test_every_family_of_the_benchmark_has_scenarios() -> None:
    for number in range(1, 14):
        assert select(f"S{number}"), number
    assert len({scenario.name for scenario in SCENARIOS.values()}) == len(SCENARIOS)


def test_the_knee_is_looked_for_from_60_to_110_percent() -> None:
    loads = [scenario.workload.utilisation or 0.0 for scenario in select("S2")]
    assert (min(loads), max(loads)) == (0.6, 1.1)
    assert loads == sorted(loads)
