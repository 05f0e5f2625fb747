"""docs/benchmark.md, made of results: bars first, misses as plainly as passes, then plots, then every cell."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from evenload.bench.bars import Verdict
from evenload.bench.facts import Facts
from evenload.bench.grid import Cell
from evenload.bench.plans import SUBJECT
from evenload.bench.plots import Plot
from evenload.bench.tables import by_scenario, printable, scenario_rows
from evenload.bench.words import tally, verdict_rows
from evenload.routing import POLICIES
from evenload.sim.policies import make_policy
from evenload.sim.presets import PRESETS
from evenload.sim.scenario import Scenario, Slo, TelemetryPath

INTRODUCTION = """\
<!-- Made by `evenload sim compare --grid {grid} --write {path}`; edits are lost. -->
# The routing benchmark

A fleet in virtual time, with the production code for scoring and routing, on public traces: `{subject}` beside every
baseline that might be the best one, and beside an oracle that knows what no router can know (true output lengths, every
queue as it is now, faults). {facts}

```sh
# 3 minutes; fails when routing is broken
evenload sim compare --grid quick
# this page
evenload sim compare --grid core --write {path}
# every cell, policy and seed, both arms, resumable; the page in HTML
evenload sim compare --grid full --report DIR
# one run; the same commit repeats its digest
evenload sim run s7-step --policy {subject} --seeds 3
```

How to read it: figures are medians over seeds, in brackets the 95 % interval from resampled seeds; ratios are taken
seed by seed, since all policies meet the same arrivals, sizes and luck. Within 10 % is a tie. Failed, refused and
timed-out requests count as an infinite TTFT. Regret is 0 for the oracle and 1 for least-connections; the oracle places
one request at a time, a yardstick and not a bound, hence figures below 0, above all beyond the knee. In this arm
every policy has the router's retries and exclusions, but not its budget of retries; `--arm bare` has none."""


def document(
    cells: Sequence[Cell], verdicts: Sequence[Verdict], plots: Sequence[Plot], facts: Facts, path: PurePosixPath
) -> str:
    """Return the page.

    Args:
        cells: the results.
        verdicts: on the bars.
        plots: their files stand in a folder beside the page, named after it.
        facts: where the results come from.
        path: of the page, as it is shown in its commands.
    """
    parts = [
        INTRODUCTION.format(grid=facts.grid, path=path, subject=SUBJECT, facts=" ".join(facts.lines())),
        f"## Bars\n\n{tally(verdicts)}",
        _table(_marked(verdict_rows(verdicts))),
        "## Plots",
        *(f"![{plot.caption}]({path.stem}/{plot.name}.png)\n\n{plot.caption}" for plot in plots),
        "## Cells",
        _table(list(_cell_rows(cells))),
        "## Every result",
    ]
    for name, group in by_scenario(cells).items():
        parts.append(f"### {name}\n\n{_sentence(group[0].case.scenario.shows)}")
        parts.append(_table([printable(row) for row in scenario_rows(group)]))
    parts += ["## Constants", *_constants(cells)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _marked(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    marks = {"miss": "**miss**"}
    return [{**row, "outcome": marks.get(row["outcome"], row["outcome"])} for row in rows]


def _cell_rows(cells: Sequence[Cell]) -> Iterator[dict[str, str]]:
    for name, group in by_scenario(cells).items():
        scenario = group[0].case.scenario
        low_ms, high_ms = scenario.window_ms
        policies = list(dict.fromkeys(cell.case.policy for cell in group))
        yield {
            "cell": name,
            "what": scenario.shows,
            "load": _load(scenario),
            "routers": str(scenario.routers),
            "measured": f"{low_ms / 1e3:g} to {high_ms / 1e3:g} of {scenario.duration_s:g} s",
            "requests": f"{group[0].figures.get('requests', 0):.0f}",
            "seeds": str(len({cell.case.seed for cell in group})),
            "policies": ", ".join(policies),
        }


def _load(scenario: Scenario) -> str:
    workload = scenario.workload
    if workload.rate_rps is not None:
        rate = f"{workload.rate_rps:g} req/s"
    elif workload.time_factor is not None:
        rate = f"{workload.time_factor:g} x"
    else:
        rate = f"{100 * (workload.utilisation or 0):.0f} %"
    return f"{workload.trace} {rate}"


def _constants(cells: Sequence[Cell]) -> Iterator[str]:
    scenarios = [group[0].case.scenario for group in by_scenario(cells).values()]
    slo, path = Slo(), TelemetryPath()
    yield (
        f"SLO: TTFT {slo.ttft_ms:g} ms, TPOT {slo.tpot_ms:g} ms. Telemetry, unless swept: gauges every "
        f"{path.gauge_interval_ms:g} ms, events log-normal with p50 {path.event_p50_ms:g} ms and p99 "
        f"{path.event_p99_ms:g} ms, snapshots p50 {path.snapshot_p50_ms:g} ms and p99 {path.snapshot_p99_ms:g} ms. "
        "Loads in per cent are of the fleet's saturated throughput in closed form (`evenload.sim.capacity`); traces "
        "are laid over each other at random rotations up to the wanted rate, Mooncake's are compressed in time."
    )
    if SUBJECT in POLICIES:
        yield f"`{SUBJECT}`: `{make_policy(SUBJECT)!r}`"
    used = {spec.machine.name for scenario in scenarios for spec in scenario.fleet if spec.machine is not None}
    yield "Engines (milliseconds, tokens), about 25 % uncertain:"
    yield _table(
        [
            {
                "preset": one.name,
                "fixed": f"{one.fixed_ms:g}",
                "memory": f"{one.memory_ms:g}",
                "per token": f"{one.per_token_ms:g}",
                "per sequence": f"{one.per_seq_ms:g}",
                "us per KV token": f"{one.per_kv_token_us:g}",
                "attention": f"{one.attention_ms:g}",
                "KV": f"{one.kv_tokens}",
                "step budget": f"{one.step_budget}",
                "sequences": f"{one.seqs_max}",
            }
            for one in PRESETS.values()
            if one.name in used
        ]
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    names = list(rows[0])
    left = {"policy", "", "bar", "note", "cell", "what", "load", "policies", "preset", "outcome"}
    lines = [names, ["---" if name in left else "---:" for name in names], *([*row.values()] for row in rows)]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
