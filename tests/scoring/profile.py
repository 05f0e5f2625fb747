"""How Hypothesis runs here: always the same examples, no deadline on a machine that others use too.

`EVENLOAD_HYPOTHESIS=explore pytest tests/scoring` draws new examples, many more, and keeps failures in
`.hypothesis`; a failure prints the decorator that reproduces it.
"""

import os

from hypothesis import HealthCheck, settings


def load() -> None:
    """Register both profiles and load the one that the environment asks for."""
    explore = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=1000)
    settings.register_profile("explore", explore)
    settings.register_profile("fixed", explore, derandomize=True, database=None, max_examples=60)
    settings.load_profile(os.environ.get("EVENLOAD_HYPOTHESIS", "fixed"))
