"""Loads the Hypothesis profile of the pure packages."""

from tests.scoring import profile

profile.load()
