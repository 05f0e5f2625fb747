"""A self-contained HTML report: bars, plots, every cell."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from evenload.bench.bars import Verdict
from evenload.bench.facts import Facts
from evenload.bench.grid import Cell
from evenload.bench.plots import Plot
from evenload.bench.tables import by_scenario, printable, scenario_rows
from evenload.bench.words import tally, verdict_rows

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b }
h1, h2, h3 { line-height: 1.2; margin-top: 2em } h1 { margin-top: 0 }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto }
th, td { padding: .25em .7em; border-bottom: 1px solid #e3e3e3; text-align: right; white-space: nowrap }
th { border-bottom: 2px solid #888 }
th:first-child, td:first-child, .bars td:nth-child(2), .bars th:nth-child(2) { text-align: left }
.bars td:last-child, .bars th:last-child { text-align: left; white-space: normal; color: #555 }
.pass { color: #006b4c; font-weight: 600 } .miss { color: #b34700; font-weight: 600 } .not { color: #777 }
figure { margin: 2rem 0 } figcaption { color: #555; max-width: 50rem } img { max-width: 100% }
"""


def page(cells: Sequence[Cell], verdicts: Sequence[Verdict], plots: Sequence[Plot], facts: Facts) -> str:
    """Return the report as one HTML file; pictures are inside it."""
    groups = by_scenario(cells)
    body = [
        f"<h1>Routing benchmark: grid {escape(facts.grid)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in facts.lines()),
        f"<h2>Bars</h2><p>{tally(verdicts)}</p>",
        _table(verdict_rows(verdicts), "bars"),
        "<h2>Plots</h2>",
        *(_figure(plot) for plot in plots),
        "<h2>Every cell</h2>",
    ]
    for name, group in groups.items():
        body.append(f"<h3>{escape(name)}</h3><p>{escape(group[0].case.scenario.shows)}</p>")
        body.append(_table([printable(row) for row in scenario_rows(group)], ""))
    head = f'<meta charset="utf-8"><title>Evenload: routing benchmark</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _figure(plot: Plot) -> str:
    source = b64encode(plot.png).decode()
    caption = escape(plot.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{source}"><figcaption>{caption}</figcaption></figure>'
    )


def _table(rows: Sequence[Mapping[str, str]], kind: str) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = ("".join(_cell(name, text) for name, text in row.items()) for row in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{_rows(lines)}</table></div>'


def _rows(lines: Iterable[str]) -> str:
    return "\n".join(f"<tr>{line}</tr>" for line in lines)


def _cell(name: str, text: str) -> str:
    kind = f' class="{escape(text.split(maxsplit=1)[0])}"' if name == "outcome" and text else ""
    return f"<td{kind}>{escape(text)}</td>"
