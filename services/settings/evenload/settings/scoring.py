"""The constants of scoring by instance, made from the pools; scorer, router and auditor take them from here."""

from collections.abc import Callable

import msgspec

from evenload.scoring import ScoringConfig
from evenload.settings.models import Settings
from evenload.settings.pools import PoolSettings

# An instance that no pool names (it left the file, or a producer is ahead of us) is scored by the usable form.
UNKNOWN = ScoringConfig(evidence="censored")

_PUBLISHED_POLICIES = frozenset({"health", "peak-ewma"})
_RENAMED = {"damping_points_per_s": "damping_per_s", "cooling_ms_min": "cooling_ms"}


def pool_scoring(pool: PoolSettings) -> ScoringConfig:
    """Return the scoring config of a pool; the settings' bounds lie within the scoring's."""
    given = pool.scoring.model_dump()
    if given["evidence"] is None:
        given["evidence"] = "published" if pool.policy in _PUBLISHED_POLICIES else "censored"
    return msgspec.convert({_RENAMED.get(name, name): value for name, value in given.items()}, ScoringConfig)


def scoring_configs(settings: Settings) -> dict[str, ScoringConfig]:
    """Return the scoring config by instance id, for the instances of all pools."""
    return {instance.id: pool_scoring(pool) for pool in settings.pools for instance in pool.instances}


def config_of(settings: Settings) -> Callable[[str], ScoringConfig]:
    """Return the function from instance id to scoring config that the fold takes; `UNKNOWN` for ids of no pool."""
    configs = scoring_configs(settings)

    def of(instance: str) -> ScoringConfig:
        return configs.get(instance, UNKNOWN)

    return of
