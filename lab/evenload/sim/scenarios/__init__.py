"""The benchmark's scenarios, one small file per family, and the names they are known by.

A selector names a scenario (`s7-step`), a family (`S7`), or is a prefix of names (`s1-u`).
"""

from evenload.sim.scenario import Scenario
from evenload.sim.scenarios import (
    headline,
    s01_steady,
    s02_knee,
    s03_mixed,
    s04_burst,
    s05_long_prompts,
    s06_kv_pressure,
    s07_gray_slow,
    s08_black_hole,
    s09_crash_join,
    s10_stale,
    s11_many_routers,
    s12_prefixes,
    s13_overload,
)

_FAMILIES = (
    s01_steady,
    s02_knee,
    s03_mixed,
    s04_burst,
    s05_long_prompts,
    s06_kv_pressure,
    s07_gray_slow,
    s08_black_hole,
    s09_crash_join,
    s10_stale,
    s11_many_routers,
    s12_prefixes,
    s13_overload,
    headline,
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for family in _FAMILIES for scenario in family.SCENARIOS}
FAMILIES: tuple[str, ...] = tuple(family.SCENARIOS[0].family for family in _FAMILIES)


def select(selector: str) -> list[Scenario]:
    """Return the scenarios that a selector names.

    Raises:
        ValueError: it names none; the message lists what there is.
    """
    wanted = selector.strip().lower()
    if wanted in SCENARIOS:
        return [SCENARIOS[wanted]]
    found = [one for one in SCENARIOS.values() if one.family.lower() == wanted]
    found = found or [one for name, one in SCENARIOS.items() if wanted and name.startswith(wanted)]
    if not found:
        raise ValueError(
            f"no scenario {selector!r}; there are {', '.join(SCENARIOS)}, and the families {', '.join(FAMILIES)}"
        )
    return found
