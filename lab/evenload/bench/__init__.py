"""Running simulations: traces, worker processes, a cache of results, tables. The simulations are `evenload.sim`.

Reading order: `main.py` (what the command line calls), `grid.py` (processes and cache), `inputs.py` (traces to jobs).
"""
