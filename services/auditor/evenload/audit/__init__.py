"""The auditor: replays the topics and proves why each request went where it went.

Reading order: `findings.py` (verdicts), `snapshots.py` (every score recomputed from telemetry), `decisions.py` (every
choice redone from its record), `story.py` (one request in plain words), `main.py` (reading the log).
"""
