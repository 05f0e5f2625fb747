"""The scorer: a Faust worker that folds telemetry into states and publishes snapshots.

Start with `core.py` (one partition, no I/O) and `recovery.py` (where to go on after a crash); `app.py` is the Faust
shell round them, `main.py` the process.
"""
