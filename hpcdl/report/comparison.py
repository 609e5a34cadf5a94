"""A comparison of runs as a page, as JSON and as JUnit XML.

The page has the verdict, differences of the environments, then all measures, the worst first.
"""

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.over_time.pairing import INCONCLUSIVE, NEW, Change, label
from hpcdl.analysis.over_time.regressions import IMPROVED, REGRESSED, UNCHANGED, VERDICTS, Accepted, Comparison
from hpcdl.analysis.over_time.series import RunSeries, median_slowness
from hpcdl.analysis.over_time.suspects import host_list
from hpcdl.analysis.run.disturbance import facts
from hpcdl.analysis.statistics.differences import MIN_DRIFT
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.launch.environment import differences
from hpcdl.report.formats.cells import NONE, digits, interval, longer, plural, seconds, signed
from hpcdl.report.formats.document import Axis, Document, Intervals, Section, headed
from hpcdl.report.formats.tables import Table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.formats.writers import TestCase, TestSuite
from hpcdl.report.run import link_counters
from hpcdl.trace.files import JsonMapping
from hpcdl.trace.link_counters import recorded

FACTS: Final = 8
"""Differences of the environment, at most; --json has all."""
SHORT: Final = 60
"""Longest reason in the table (characters)."""
MAX_NAME: Final = 10_000
"""Characters of a name that nothing limits."""
MAX_RATIO: Final = 10.0
"""Largest ratio that is shown as the smallest visible one; beyond it a comparison sees nothing."""
RESEMBLING: Final = 0.3
"""Correlation of neighbours that must be excluded, or the page asks for runs of both sides in turn."""
MOST_ROWS: Final = 20
"""Largest ratios, and smallest ones, that the figure has at most."""


def page(comparison: Comparison, copies: Sequence[str] = (), width: int = MAX_NAME) -> Document:
    """Return the page; ``copies``: one line per run that was given twice; ``width``: longest name in the table."""
    table, figure = _table(comparison.changes, width), _figure(comparison.changes)
    facts = _environment(comparison) or ["the environments are the same in all recorded facts"]
    more = [f"{len(facts) - FACTS} more differences; --json has all"] * (len(facts) > FACTS)
    cases = len({(change.suite, change.case) for change in comparison.changes})
    counts = ", ".join(f"{comparison.count(word)} {word}" for word in VERDICTS if comparison.count(word))
    sections = [
        Section("Runs and environment", [*_runs(comparison), *copies], [*facts[:FACTS], *more]),
        link_counters.compared(_link_counters(comparison)),
        Section("All measures, worst first", tables=[table], charts=[figure] if figure.labels else []),
    ]
    state = f"{plural(len(comparison.changes), 'measure')} of {plural(cases, 'case')}: {counts}."
    notes = [*_power(comparison), *_notes(comparison)]
    return headed("Comparison of runs", [verdict(comparison)], sections, state=state, notes=notes)


def _runs(comparison: Comparison) -> list[str]:
    lines, (baseline, candidate) = [], comparison.sides
    for name, runs, jobs in zip(("Baseline", "Candidate"), comparison.sides, comparison.jobs, strict=True):
        dates = sorted(run.began for run in runs if run.began)
        when = " to ".join(dict.fromkeys(f"{date:%Y-%m-%d %H:%M}" for date in dates[:1] + dates[-1:]))
        launches = f"{len(runs)} launch{'' if len(runs) == 1 else 'es'} of {plural(jobs, 'job')}"
        first = f"from {runs[0].path} on" if len(runs) > 1 else runs[0].path
        lines.append(f"{name}: {', '.join(filter(None, [launches, when, first]))}.")
    if comparison.between_jobs and len(baseline) + len(candidate) > 2:
        share = f"{100 * comparison.between_jobs:g} % (--between-jobs)"
        lines.append(f"Each side is one job. Jobs are assumed to differ by {share}: compare several jobs.")
    if comparison.paired:
        lines.append("Both sides alternate in time: each run is compared with the one beside it.")
    if comparison.drift:
        allowed = f"Intervals allow for a correlation of {comparison.drift:.2f}"
        lines.append(f"{allowed} between each {comparison.unit} and the one before it.")
    if comparison.unit == "job":
        lines.append("Each job counts once, with the median of its launches.")
    if min(len(baseline), len(candidate)) == 1 < max(len(baseline), len(candidate)):
        lines.append("One side has only one launch, and its outliers look like changes: repeat it before you act.")
    unused = ", ".join(accepted.case for accepted in comparison.unused)
    return lines + ([f"Accepted regressions that match no case: {unused}."] if unused else [])


def _link_counters(comparison: Comparison) -> link_counters.Beyond:
    return link_counters.grown_beyond(*([recorded(run.environment) for run in runs] for runs in comparison.sides))


def _environment(comparison: Comparison) -> list[str]:
    before, now = ({key for run in side for key in run.environments} for side in comparison.sides)
    return environment_changes(*comparison.sides, other=before != now)


def verdict(comparison: Comparison) -> Verdict:
    """Return the verdict of all measures: the deciding one, its hosts, and the widest undecided one."""
    changes, undecided, word = comparison.changes, comparison.undecided[:1], comparison.verdict
    alike = [change for change in changes if change.verdict == word]
    by_size = sorted(alike, key=lambda change: abs(math.log(change.ratio)))
    deciding = {INCONCLUSIVE: undecided, IMPROVED: alike[-1:], UNCHANGED: by_size[-1:]}
    worst = (deciding.get(word) or changes)[0]
    sentence = verdict_of(worst, SHORT, _hosts(comparison))
    text = sentence.headline.removesuffix(".")
    if word == UNCHANGED:
        text = f"{sentence.case} takes {sentence.facts['longer']}"
    others = [verdict_of(change, SHORT).sentence for change in undecided if change is not worst]
    slowest = [
        _slowest(comparison, "link", "it takes"),
        _slowest(comparison, "node", "its own work takes"),
    ]
    links = [link_counters.sentence(_link_counters(comparison)), *slowest]
    return Verdict(
        topic="comparison",
        word=word,
        size=sentence.size,
        launches=sentence.launches,
        cause=" ".join(filter(None, [sentence.cause, *(links if word == REGRESSED else ()), *others])),
        remedy=" ".join(_remedies(comparison)),
        facts={
            "worst": text,
            "state": worst.verdict.upper(),
            "part": str(len(alike)),
            "measures": plural(len(changes), "measure"),
            "least": f"{100 * comparison.min_effect:g} %",
        },
    )


def _remedies(comparison: Comparison) -> list[str]:
    """Return how runs should be started, and how many of them an undecided comparison needs."""
    remedies = []
    needed = [change.needed for change in comparison.undecided if math.isfinite(change.needed)]
    if comparison.verdict == INCONCLUSIVE and needed:
        units = "jobs" if comparison.jobs == (1, 1) or comparison.unit == "job" else "launches"
        number = f"{float(f'{max(np.median(needed), MIN_DRIFT):.2g}'):,.0f} {units}"
        remedies.append(
            f"With about {number} a side the median inconclusive measure would be unchanged with a probability "
            "of 80 %."
        )
    if comparison.drift > RESEMBLING and comparison.jobs == (1, 1):
        remedies.append("Launches of one job may drift: start them in several jobs, both sides in turn.")
    elif comparison.drift > RESEMBLING:
        remedies.append("Successive runs may resemble each other: start both sides in turn.")
    return remedies


def _hosts(comparison: Comparison) -> str:
    """Return on which hosts the candidate ran, and the baseline if on others; empty if unknown."""
    before, now = (
        sorted({str(rank["hostname"]) for run in runs for rank in run.environment.get("ranks") or ()})
        for runs in comparison.sides
    )
    earlier = f" (before: {shortened(host_list(before), SHORT // 2)})" if before and before != now else ""
    return f" on {shortened(host_list(now), SHORT // 2)}{earlier}" if now else ""


def _slowness(runs: Sequence[RunSeries], kind: str) -> dict[str, float]:
    return median_slowness((case for run in runs for case in (*run.cases, *run.disturbed_cases)), kind)


def _slowest(comparison: Comparison, kind: str, verb: str) -> str:
    """Return the slowest link or node of the candidate in a sentence; empty if a side has not measured it."""
    before, now = (_slowness(runs, kind) for runs in comparison.sides)
    name = max(now, key=lambda name: now[name], default="")
    if name not in before:
        return ""
    usual = f"{digits(now[name])} times as long as the usual {kind}"
    return f"The slowest {kind} is {name}: {verb} {usual}, before {digits(before[name])}."


def verdict_of(change: Change, width: int = MAX_NAME, hosts: str = "") -> Verdict:
    """Return the verdict of one measure.

    ``width``: longest name, and half of the longest reason (characters); ``hosts``: on which it was measured.
    """
    reason = shortened(change.reason, 2 * width).rstrip(".")
    word = f"{change.verdict} by shares" if change.by_share and change.verdict == REGRESSED else change.verdict
    if change.verdict == INCONCLUSIVE and math.isnan(change.p):
        word = "not compared"
    told = "{reason}" in Verdict(topic="compare", word=word).row.says
    return Verdict(
        topic="compare",
        word=word,
        case=_label(change, width),
        size=Interval(change.ratio, change.low, change.high),
        launches=change.launches,
        cause="" if told or not reason else f"{reason[0].upper()}{reason[1:]}.",
        facts={"longer": longer(change.ratio, change.low, change.high), "hosts": hosts, "reason": reason},
    )


def _power(comparison: Comparison) -> list[str]:
    visible = [change.smallest for change in comparison.changes if math.isfinite(change.smallest)]
    if visible:
        ratio = float(np.median(visible))
        smallest = f"{100 * (ratio - 1):.1f} %" if ratio < MAX_RATIO else "no change"
        return [f"Smallest slowdown that is found with 80 % probability (median measure): {smallest}."]
    if comparison.count(INCONCLUSIVE):
        return ["One launch does not show how launches vary: hpcdl run SUITE --launches 6"]
    return []


def _notes(comparison: Comparison) -> list[str]:
    new = [change.case for change in comparison.changes if change.verdict == NEW]
    expired = [f"{accepted.case} (until {accepted.expires})" for accepted in comparison.expired]
    return [
        f"{title}: {shortened(names[0], SHORT)}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
        for title, names in (("new", new), ("no longer accepted", expired))
        if names
    ]


def _label(change: Change, width: int = MAX_NAME) -> str:
    return label(shortened(change.case, width), change.measure)


def _table(changes: Sequence[Change], width: int) -> Table:
    header = ("measure", "verdict", "before", "after", "change", "95 %", "visible")
    rows = []
    for change in changes:
        word = ": ".join(filter(None, [change.verdict, shortened(change.reason, SHORT)]))
        times = (seconds(time) for time in (change.baseline, change.candidate))
        bounds = interval(change.low, change.high, signed)
        visible = signed(change.smallest) if change.smallest < MAX_RATIO else NONE
        name = label(change.case, change.measure)
        rows.append((name, word, *times, signed(change.ratio), bounds, visible))
    notes = [
        "Before, after: geometric means over launches or jobs. Change: after / before.",
        "Visible: smallest slowdown that would be found with 80 % probability.",
    ]
    made = Table("", header, rows, 1, notes, answers=("change", "95 %", "verdict", "before", "after"))
    return made if width == MAX_NAME else made.without("visible")


def name_width(terminal: int) -> int:
    """Return the longest name with which all columns of the table fit into a terminal (characters)."""
    return max(20, terminal - 60)


def _figure(changes: Sequence[Change]) -> Intervals:
    known = sorted((one for one in changes if math.isfinite(one.ratio)), key=lambda one: -one.ratio)
    shown, note = known, "Right of the line the candidate is slower; bars are 95 % intervals."
    if left_out := known[MOST_ROWS:-MOST_ROWS]:
        shown = [*known[:MOST_ROWS], *known[-MOST_ROWS:]]
        note += f" {len(left_out)} between the {MOST_ROWS} largest and the {MOST_ROWS} smallest are left out."
    ratios = [(one.ratio, one.low, one.high) for one in shown]
    axis = Axis("ratio of times", lambda value: NONE if value is None else f"{value:.3f}")
    return Intervals("Time after / before", [_label(one) for one in shown], ratios, axis, 1.0, note)


def record(comparison: Comparison, copies: Sequence[str]) -> dict[str, object]:
    """Return the document for JSON; null for unknown values."""
    overall, (baseline, candidate) = verdict(comparison), comparison.sides
    return {
        "verdict": overall.word,
        "sentence": overall.sentence,
        "exit_code": overall.row.code,
        "min_effect": comparison.min_effect,
        "unit": comparison.unit,
        "between_jobs": comparison.between_jobs,
        "drift": comparison.drift,
        "paired": comparison.paired,
        "baseline": [_run(run) for run in baseline],
        "candidate": [_run(run) for run in candidate],
        "copies": copies,
        "environment_differences": _environment(comparison),
        "link_counters": link_counters.records(_link_counters(comparison)),
        "measures": [_change(change) for change in comparison.changes],
        "accepted_expired": [_accepted(accepted) for accepted in comparison.expired],
        "accepted_unused": [_accepted(accepted) for accepted in comparison.unused],
    }


def _run(run: RunSeries) -> dict[str, object]:
    where = {"run": run.path, "date": run.date or None, "job": run.job}
    return {**where, "complete": run.complete, "environment_keys": list(run.environments)}


def _change(change: Change) -> dict[str, object]:
    return {
        **{name: getattr(change, name) for name in ("suite", "case", "measure", "verdict")},
        "reason": change.reason or None,
        "sentence": verdict_of(change).sentence,
        "baseline_launches": change.launches[0],
        "candidate_launches": change.launches[1],
        "baseline_seconds": change.baseline,
        "candidate_seconds": change.candidate,
        "ratio": change.ratio,
        "ratio_low": change.low,
        "ratio_high": change.high,
        "p_adjusted": change.p,
        "smallest_visible_ratio": change.smallest,
        "launches_needed": change.needed,
        "largest_undecided_ratio": change.largest if change.verdict == INCONCLUSIVE else None,
    }


def _accepted(accepted: Accepted) -> dict[str, str]:
    return {"case": accepted.case, "reason": accepted.reason, "expires": accepted.expires.isoformat()}


def tests(comparison: Comparison, text: str) -> list[TestSuite]:
    """Return a test case per case and measure; ``text`` is the page on a terminal."""
    cases = [
        TestCase.of(change.suite, f"{change.case} {change.measure}", [verdict_of(change)])
        for change in comparison.changes
    ]
    return [TestSuite("hpcdl compare", cases, text.split("\n"))]


VARIABLES: Final = re.compile(
    r"(UCX|MPICH|MPIR|FI|I_MPI|NCCL|CUDA|OPENBLAS|MKL|OMP|GOMP|KMP|NUMBA)_|OMPI_MCA_(btl|coll|mpi|mtl|osc|pml)(_|$)"
    r"|SLURM_JOB_PARTITION$"
)
"""Variables that change how fast a job is; others name the job, its processes or its files."""


def environment_changes(before: Sequence[RunSeries], now: Sequence[RunSeries], *, other: bool) -> list[str]:
    """Return the facts that differ between the sides, those of the environment key first.

    ``other``: the environment keys of the sides differ.
    """
    lines = differences(before[-1].environment, now[-1].environment) if other else []
    lines = lines or ["its key differs, in no recorded fact"] * other
    sides = [[_recorded_facts(run.environment) for run in runs] for runs in (before, now)]
    for name in dict.fromkeys(name for side in sides for known in side for name in known):
        texts = [" or ".join(sorted({known.get(name, "not set") for known in side})) for side in sides]
        if texts[0] != texts[1]:
            lines.append("{} was {} and is {}".format(name, *(shortened(text, 60) for text in texts)))
    return lines


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters, without its middle."""
    if len(text) <= width:
        return text
    left = (width - 3) // 2
    return f"{text[:left]}...{text[len(text) - (width - 3 - left) :]}"


def _recorded_facts(env: JsonMapping) -> dict[str, str]:
    cpu, software, git = (facts(env, name) for name in ("cpu", "software", "git"))
    changed = "-dirty" if git.get("changed_files") else ""
    ranks = env.get("ranks") or ()
    known = {
        "hpcdl": software.get("hpcdl"),
        "commit": f"{str(git['commit'])[:12]}{changed}" if git.get("commit") else None,
        "governor": cpu.get("governor"),
        "CPU quota": cpu.get("quota_cores"),
        "clock source": env.get("clocksource"),
        "hosts": host_list(sorted({str(rank.get("hostname")) for rank in ranks})),
        "cores of ranks": " ".join(dict.fromkeys(str(rank.get("affinity")) for rank in ranks)),
        **{name: value for name, value in facts(env, "variables").items() if VARIABLES.match(name)},
    }
    return {name: str(value) for name, value in known.items() if value not in (None, "")}
