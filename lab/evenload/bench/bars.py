"""The bars of the benchmark: what each asks for, and whether results meet it.

A bar is met when the statistic over the seeds meets the limit; its interval stands beside it, and `sure` says whether
the whole interval is on the same side. A bar whose cells are not among the results is not run: that is no pass.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Final, Literal

from evenload.bench.evidence import Evidence, Measured, Statistic
from evenload.bench.grid import Cell
from evenload.bench.knee import knee, loads, relative_capacity
from evenload.bench.plans import BASE, PREFIX_AWARE, SUBJECT
from evenload.bench.tables import p99_figure
from evenload.sim.comparison import TIE, regret
from evenload.sim.policies import ORACLE, policy_name

Outcome = Literal["pass", "miss", "not run", "shown"]
HEADLINE_PUBLISHED: Final = 7.9
LEVEL: Final = 1.0 + TIE
KNEE_GAIN, KNEE_OF_ORACLE = 1.28, 0.90
NOTHING: Final = Measured(nan, nan, nan, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A bar and what the results say.

    Attributes:
        family: of the scenarios, for example `S7`.
        asks: the figure, in words.
        limit: what it must not exceed (`at_most`) or stay below; NaN for figures that are shown without a bar.
        unit: `s`, `ms`, `%` (the figures are shares), `x` (ratios), or nothing.
        note: which cell it is about, or why nothing is known.
    """

    family: str
    asks: str
    outcome: Outcome
    limit: float
    measured: Measured = NOTHING
    at_most: bool = True
    unit: str = ""
    note: str = ""

    @property
    def sure(self) -> bool:
        """Whether the interval lies wholly on the side of the value."""
        low, high = self.measured.low, self.measured.high
        return not (low <= self.limit < high if self.at_most else low < self.limit <= high)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Makes verdicts about one policy out of the evidence."""

    evidence: Evidence
    subject: str

    def bar(
        self,
        family: str,
        asks: str,
        statistic: Statistic,
        needs: Sequence[tuple[str, str]],
        *,
        limit: float,
        unit: str = "",
        at_most: bool = True,
        note: str = "",
    ) -> Verdict:
        """Return the verdict on a statistic; `needs` are the pairs of scenario and policy that it reads."""
        seeds = self.evidence.seeds(*needs)
        measured = self.evidence.measure(statistic, seeds) if seeds else NOTHING
        outcome: Outcome = "not run"
        if isnan(measured.value):
            note = self._missing(needs) or note or "nothing to compare"
        elif isnan(limit):
            outcome = "shown"
        else:
            outcome = "pass" if (measured.value <= limit if at_most else measured.value >= limit) else "miss"
        return Verdict(
            family=family,
            asks=asks,
            outcome=outcome,
            limit=limit,
            measured=measured,
            at_most=at_most,
            unit=unit,
            note=note,
        )

    def _missing(self, needs: Sequence[tuple[str, str]]) -> str:
        known = self.evidence.scenarios
        absent = [(name, policy) for name, policy in needs if not self.evidence.seeds((name, policy))]
        names = dict.fromkeys(f"{policy} in {name}" if name in known else name for name, policy in absent)
        return f"without {', '.join(list(names)[:3])}{' and more' if len(names) > 3 else ''}" if names else ""

    def figure(self, family: str, asks: str, cell: str, figure: str, *, limit: float, unit: str) -> Verdict:
        """Return the verdict on the median of a figure of the subject."""
        median = self.evidence.median(cell, self.subject, figure)
        return self.bar(family, asks, median, [(cell, self.subject)], limit=limit, unit=unit)

    def t95(self, asks: str, cell: str, limit_s: float) -> Verdict:
        """Return the verdict on T95, the time *from which on* the share stays low: its window of 500 ms begins."""
        end = self.evidence.median(cell, self.subject, "t95_s")

        def begin(seeds: Sequence[int]) -> float:
            end_s = end(seeds)
            return end_s if isnan(end_s) else max(0.0, round(end_s - 0.5, 3))

        return self.bar("S7", asks, begin, [(cell, self.subject)], limit=limit_s, unit="s")

    def ratio(
        self, family: str, asks: str, mine: str, other: tuple[str, str], *, limit: float, note: str = ""
    ) -> Verdict:
        """Return the verdict on the paired ratio of the subject's p99 TTFT to another cell's."""
        figure = p99_figure(family)
        statistic = self.evidence.ratio((mine, self.subject, figure), (*other, figure))
        return self.bar(family, asks, statistic, [(mine, self.subject), other], limit=limit, unit="x", note=note)

    def worst_ratio(self, family: str, asks: str, rivals: Callable[[str], Sequence[str]]) -> Verdict:
        """Return the verdict on the worst cell of a family against the best of the rivals there."""
        found: list[Verdict] = []
        figure = p99_figure(family)
        for cell in _cells_of(self.evidence, family):
            others = [name for name in rivals(cell) if name in self.evidence.policies(cell)]
            if not others or self.subject not in self.evidence.policies(cell):
                continue
            best = min(others, key=lambda name: (self._middle(cell, name, figure), name))
            found.append(self.ratio(family, asks, cell, (cell, best), limit=LEVEL, note=f"{cell} against {best}"))
        if not found:
            note = f"no cell has {self.subject} and one to compare it with"
            return Verdict(family=family, asks=asks, outcome="not run", limit=LEVEL, unit="x", note=note)
        worst = max(found, key=lambda one: one.measured.value)
        misses = [one.note.partition(" ")[0] for one in found if one.outcome == "miss"]
        note = f"worst of {len(found)}: {worst.note}" if len(found) > 1 else worst.note
        also = f"; missed in {', '.join(misses)}" if len(misses) > 1 else ""
        return Verdict(
            family=family,
            asks=asks,
            outcome=worst.outcome,
            limit=LEVEL,
            measured=worst.measured,
            unit="x",
            note=note + also,
        )

    def _middle(self, cell: str, policy: str, figure: str) -> float:
        value = self.evidence.median(cell, policy, figure)(self.evidence.seeds((cell, policy), (cell, self.subject)))
        return inf if isnan(value) else value


def judge(cells: Sequence[Cell], subject: str = SUBJECT) -> list[Verdict]:
    """Return the verdict on every bar, the headline first, then by scenario."""
    judge = _Judge(Evidence(cells), subject)
    makers = (_headline, _s7, _s8, _regrets, _s6, _s2, _best_baseline, _s12, _s10, _s11)
    found = [verdict for make in makers for verdict in make(judge)]
    return sorted(found, key=lambda one: int(one.family.removeprefix("S")) if one.family[1:].isdigit() else 0)


def _headline(judge: _Judge) -> Iterator[Verdict]:
    named = {"headline-sick": "the headline"}
    names = ("sick", "load-90", "load-110", "engines-7", "engines-9", "fail")
    for name in (f"headline-{short}" for short in names):
        gain = judge.evidence.ratio((name, BASE, "ttft_p99_ms"), (name, judge.subject, "ttft_p99_ms"))
        yield judge.bar(
            "Headline",
            f"least-connections' p99 TTFT over {judge.subject}'s, {named.get(name, 'neighbour ' + name)}",
            gain,
            [(name, BASE), (name, judge.subject)],
            limit=HEADLINE_PUBLISHED if name in named else nan,
            unit="x",
            at_most=False,
            note="published: 14.2 s to 1.8 s" if name in named else "",
        )


def _s7(judge: _Judge) -> Iterator[Verdict]:
    subject, evidence = judge.subject, judge.evidence
    for cell, routers, t95_s in (("s7-step-r1", "1 router", 0.5), ("s7-step", "4 routers", 0.6)):
        yield judge.t95(f"step, {routers}: T95", cell, t95_s)
        yield judge.figure(
            "S7", f"step, {routers}: the end of its window of 500 ms", cell, "t95_s", limit=nan, unit="s"
        )
        yield judge.bar(
            "S7",
            f"step, {routers}: p99 TTFT of the 60 s of fault over the same fleet's without fault",
            evidence.ratio((cell, subject, "fault_ttft_p99_ms"), ("s7-healthy", subject, "ttft_p99_ms")),
            [(cell, subject), ("s7-healthy", subject)],
            limit=1.15,
            unit="x",
        )
        yield judge.figure("S7", f"step, {routers}: requests harmed", cell, "harmed_share", limit=0.003, unit="%")
        yield judge.figure("S7", f"step, {routers}: probes", cell, "fault_probe_share", limit=0.005, unit="%")
        yield judge.figure("S7", f"step, {routers}: back at 90 % of fair share", cell, "back90_s", limit=15.0, unit="s")
        yield judge.figure(
            "S7", f"step, {routers}: most after healing, in fair shares", cell, "overshoot", limit=1.3, unit="x"
        )


def _s8(judge: _Judge) -> Iterator[Verdict]:
    for cell, share in (("s8-all", "100 %"), ("s8-third", "30 %")):
        yield judge.figure(
            "S8", f"{share} fail: user requests failed", cell, "fault_unserved_share", limit=0.001, unit="%"
        )
    yield judge.figure(
        "S8",
        "100 % fail: attempts at the dead one after 1 s, probes apart",
        "s8-all",
        "fault_share",
        limit=0.01,
        unit="%",
    )


def _regrets(judge: _Judge) -> Iterator[Verdict]:
    evidence, subject = judge.evidence, judge.subject
    for family, cell in (("S3", "s3-mixed"), ("S5", "s5-long"), ("S6", "s6-kv")):
        figure = p99_figure(family)
        mine, base, oracle = (evidence.median(cell, policy, figure) for policy in (subject, BASE, ORACLE))
        of_short = " of the short prompts" if family == "S5" else ""

        def statistic(
            seeds: Sequence[int], mine: Statistic = mine, base: Statistic = base, oracle: Statistic = oracle
        ) -> float:
            return regret(mine(seeds), base(seeds), oracle(seeds))

        yield judge.bar(
            family,
            f"regret on p99 TTFT{of_short}",
            statistic,
            [(cell, subject), (cell, BASE), (cell, ORACLE)],
            limit=0.25,
            note="0 is the oracle, 1 least-connections",
        )


def _s6(judge: _Judge) -> Iterator[Verdict]:
    evidence, subject, cell = judge.evidence, judge.subject, "s6-kv"
    crashes = evidence.values(cell, subject, "crashes")
    mine, base = (evidence.median(cell, policy, "preemptions") for policy in (subject, BASE))
    yield judge.bar(
        "S6",
        "crashes, the most of any seed",
        lambda seeds: max(crashes[seed] for seed in seeds),
        [(cell, subject)],
        limit=0.0,
    )
    yield judge.bar(
        "S6",
        "preemptions over least-connections'",
        lambda seeds: _share_of(mine(seeds), base(seeds)),
        [(cell, subject), (cell, BASE)],
        limit=0.10,
        unit="x",
    )


def _share_of(mine: float, base: float) -> float:
    """None at all is a tenth of anything, of nothing too."""
    return 0.0 if mine == 0.0 else inf if base == 0.0 else mine / base


def _s2(judge: _Judge) -> Iterator[Verdict]:
    """At least 28 % above least-connections or, where the oracle shows less to be possible, 90 % of the oracle's."""
    evidence, subject = judge.evidence, judge.subject
    cells = _cells_of(evidence, "S2") or ["s2-u85"]
    needs = [(cell, policy) for cell in cells for policy in (subject, BASE, ORACLE)]
    seeds = evidence.seeds(*needs)
    for figure, words in (("goodput_rps", "goodput at 99 % attainment"), ("effective_tps", "effective tokens/s there")):
        possible = relative_capacity(evidence, cells, figure, ORACLE, BASE)(seeds) if seeds else nan
        rival, limit = (ORACLE, KNEE_OF_ORACLE) if possible < KNEE_GAIN else (BASE, KNEE_GAIN)
        yield judge.bar(
            "S2",
            f"{words}, over {rival}",
            relative_capacity(evidence, cells, figure, subject, rival),
            needs,
            limit=limit,
            unit="x",
            at_most=False,
            note=_knees(judge, cells, seeds),
        )


def _knees(judge: _Judge, cells: Sequence[str], seeds: Sequence[int]) -> str:
    if not seeds:
        return ""
    found = ((name, knee(loads(judge.evidence, cells, name), seeds)) for name in (judge.subject, BASE, ORACLE))
    return ", ".join(f"{name} {one.describe()}" for name, one in found)


def _best_baseline(judge: _Judge) -> Iterator[Verdict]:
    def baselines(cell: str) -> list[str]:
        apart = {ORACLE, policy_name(judge.subject)}
        return [name for name in judge.evidence.policies(cell) if policy_name(name) not in apart]

    for family in ("S1", *(f"S{number}" for number in range(2, 14))):
        yield judge.worst_ratio(family, "p99 TTFT over the best baseline's, in the worst cell", baselines)


def _s12(judge: _Judge) -> Iterator[Verdict]:
    yield judge.worst_ratio(
        "S12", "p99 TTFT over the best prefix-aware baseline's, in the worst cell", lambda _: PREFIX_AWARE
    )
    for what, published_ms in (("conversation", 5000.0), ("synthetic", 3800.0)):
        cell = f"s12-32b-{what}-x2"
        yield judge.figure(
            "S12",
            f"p99 TTFT, {what} at 2 x on 16 h100x2-qwen32b (published)",
            cell,
            "ttft_p99_ms",
            limit=published_ms,
            unit="ms",
        )


def _s10(judge: _Judge) -> Iterator[Verdict]:
    for name in ("stale-50", "stale-250", "stale-1000", "stale-5000", "stall", "disorder", "skew"):
        cell = f"s10-{name}"
        yield judge.ratio(
            "S10", f"{name}: p99 TTFT over local least-awaiting's", cell, (cell, "least-awaiting"), limit=1.1
        )


def _s11(judge: _Judge) -> Iterator[Verdict]:
    one = ("s11-r1", judge.subject)
    yield judge.ratio("S11", "p99 TTFT with 8 replicas over that with one", "s11-r8", one, limit=1.3)
    yield judge.ratio("S11", "p99 TTFT with 32 replicas over that with one", "s11-r32", one, limit=nan)


def _cells_of(evidence: Evidence, family: str) -> list[str]:
    """The family's cells, loads in order of load."""
    found = [name for name in evidence.scenarios if name.startswith(f"{family.lower()}-")]
    return sorted(found, key=lambda name: int(name.removeprefix("s2-u"))) if family == "S2" else found
