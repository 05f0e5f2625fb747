"""Running simulations: grids of cells, worker processes, kept results, bars, tables, reports.

The simulations are `evenload.sim`. Reading order: `main.py` (what the command line calls), `plans.py` (which cells),
`grid.py` (processes and cache), `evidence.py` and `bars.py` (what results say), `plots.py`, `page.py`, `document.py`.
"""
