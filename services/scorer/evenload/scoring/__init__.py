"""Scores: the pure fold that scorer, router, auditor and simulator share. Nothing else computes a score.

Reading order: `health.py` (the formula), `fold.py` (how events change a state), `damping.py` (how time does),
`snapshot.py` (reading a state).
"""

from evenload.scoring.config import DEFAULT, ScoringConfig, digest
from evenload.scoring.fold import apply, apply_all, fold, fresh
from evenload.scoring.health import health_score
from evenload.scoring.snapshot import at, score, snapshot

__all__ = [
    "DEFAULT",
    "ScoringConfig",
    "apply",
    "apply_all",
    "at",
    "digest",
    "fold",
    "fresh",
    "health_score",
    "score",
    "snapshot",
]
