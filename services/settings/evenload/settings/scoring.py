"""The constants of scoring by instance, made from the pools; scorer, router and auditor take them from here."""

from collections.abc import Callable

import msgspec

from evenload.scoring import ScoringConfig
from evenload.settings.discovery import pool_in
from evenload.settings.models import Settings
from evenload.settings.pools import PoolSettings

# An instance of no pool (it left the file, or a producer is ahead of us) is scored by the usable form.
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
    by_pool = [(pool, pool_scoring(pool)) for pool in settings.pools]  # once each: a reload must not take long
    return {instance.id: config for pool, config in by_pool for instance in pool.instances}


def config_of(settings: Settings) -> Callable[[str], ScoringConfig]:
    """Return the function from instance id to scoring config that the fold takes.

    A discovered instance, which is in no list, is scored as its pool, which its id names; `UNKNOWN` for all others.
    """
    configs = scoring_configs(settings)
    by_pool = {pool.name: pool_scoring(pool) for pool in settings.pools}

    def of(instance: str) -> ScoringConfig:
        config = configs.get(instance)
        return by_pool.get(pool_in(instance), UNKNOWN) if config is None else config

    return of
