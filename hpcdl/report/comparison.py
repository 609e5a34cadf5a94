"""A comparison of runs as a page, as JSON and as JUnit XML.

The page has the verdict, differences of the environments, then all measures, the worst first.
"""

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.over_time.pairing import FAILED, INCONCLUSIVE, MEASURE_NAMES, MISSING, NEW, Change
from hpcdl.analysis.over_time.regressions import IMPROVED, REGRESSED, VERDICTS, Accepted, Comparison
from hpcdl.analysis.over_time.series import RunSeries
from hpcdl.analysis.run.disturbance import facts as table
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.launch.environment import differences
from hpcdl.report.formats.cells import NONE, Number, plural, seconds
from hpcdl.report.formats.document import Axis, Document, Intervals, Section, Table, headed
from hpcdl.report.formats.exports import TestCase, TestSuite
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run import link_counters
from hpcdl.trace.files import JsonMapping
from hpcdl.trace.link_counters import recorded

FACTS: Final = 8
"""Differences of the environment, at most; --json has all."""
SHORT: Final = 60
"""Longest reason in the table (characters)."""
DRIFT: Final = "Launches of one job drift: start them in several jobs."
MAX_RATIO: Final = 10.0
"""Largest ratio that is shown as the smallest visible one; beyond it a comparison sees nothing."""
MAX_ROWS: Final = 40
"""Rows of the figure, at most."""


def page(
    comparison: Comparison,
    baseline: Sequence[RunSeries],
    candidate: Sequence[RunSeries],
    copies: Sequence[str] = (),
) -> Document:
    """Return the page; ``copies``: one line per run that was given twice."""
    about, figure = _runs(comparison, baseline, candidate), _figure(comparison.changes)
    return headed(
        "Comparison of runs",
        [verdict(comparison)],
        [
            Section("Runs and environment", [*about, *copies], _facts(baseline, candidate)),
            link_counters.compared(_link_counters(baseline, candidate)),
            Section(
                "All measures, worst first",
                tables=[_table(comparison.changes)],
                charts=[figure] if figure.labels else [],
            ),
        ],
        notes=[*_power(comparison), *_notes(comparison)],
    )


def _runs(comparison: Comparison, baseline: Sequence[RunSeries], candidate: Sequence[RunSeries]) -> list[str]:
    lines = []
    for name, runs, jobs in zip(("Baseline", "Candidate"), (baseline, candidate), comparison.jobs, strict=True):
        dates = sorted(run.began for run in runs if run.began)
        when = " to ".join(dict.fromkeys(f"{date:%Y-%m-%d %H:%M}" for date in dates[:1] + dates[-1:]))
        launches = f"{len(runs)} launch{'' if len(runs) == 1 else 'es'} of {plural(jobs, 'job')}"
        first = f"from {runs[0].path} on" if len(runs) > 1 else runs[0].path
        lines.append(f"{name}: {', '.join(filter(None, [launches, when, first]))}.")
    if comparison.between_jobs and len(baseline) + len(candidate) > 2:
        share = f"{100 * comparison.between_jobs:g} % (--between-jobs)"
        lines.append(f"Each side is one job. Jobs are taken to vary by {share}: compare several jobs.")
    if comparison.drift.correlation:
        neighbours = f"each resembles the one before it (correlation {comparison.drift.correlation:.2f})"
        lines.append(f"Launches of one job drift: {neighbours}. Intervals allow for it.")
    if comparison.unit == "job":
        lines.append("The unit is the job: the median of its launches.")
    if min(len(baseline), len(candidate)) == 1 < max(len(baseline), len(candidate)):
        lines.append("One side is one launch, whose outliers look like changes: repeat it before you act.")
    unused = ", ".join(accepted.case for accepted in comparison.unused)
    return lines + ([f"Accepted regressions that match no case: {unused}."] if unused else [])


def _link_counters(*sides: Sequence[RunSeries]) -> link_counters.Beyond:
    return link_counters.grown_beyond(*([recorded(run.environment) for run in runs] for runs in sides))


def _facts(baseline: Sequence[RunSeries], candidate: Sequence[RunSeries]) -> list[str]:
    facts = environment_changes(baseline, candidate)
    more = [f"{len(facts) - FACTS} more differences; --json has all"] if len(facts) > FACTS else []
    return facts[:FACTS] + more or ["the environments are the same in all recorded facts"]


def verdict(comparison: Comparison) -> Verdict:
    """Return the verdict of all measures, with the sentences of the deciding one and of the widest undecided."""
    counts = ", ".join(f"{comparison.count(word)} {word}" for word in VERDICTS if comparison.count(word))
    cases = len({(change.suite, change.case) for change in comparison.changes})
    improved = [change for change in comparison.changes if change.verdict == comparison.verdict == IMPROVED]
    undecided = comparison.undecided[:1]
    decides = undecided if comparison.verdict == INCONCLUSIVE else improved[-1:]
    worst = (decides or comparison.changes)[0]
    sentence = verdict_of(worst, SHORT)
    measures = f"{plural(len(comparison.changes), 'measure')} of {plural(cases, 'case')}"
    facts = {"worst": sentence.sentence, "measures": measures, "counts": counts}
    others = [verdict_of(change, SHORT).sentence for change in undecided if change is not worst]
    return Verdict(
        topic="comparison",
        word=comparison.verdict,
        size=sentence.size,
        launches=sentence.launches,
        cause=" ".join(others),
        remedy=DRIFT if comparison.drift.correlation else "",
        facts=facts,
    )


def verdict_of(change: Change, width: int = 10_000) -> Verdict:
    """Return the verdict of one measure; ``width``: longest name, and half of the longest reason (characters)."""
    reason = _shortened(change.reason, 2 * width).rstrip(".")
    word = f"{change.verdict} by shares" if change.by_share and change.verdict == REGRESSED else change.verdict
    if change.verdict == INCONCLUSIVE and math.isnan(change.p):
        word = "not compared"
    told = word in {FAILED, MISSING, "not compared"}  # the sentence has the reason
    return Verdict(
        topic="compare",
        word=word,
        case=_shortened(change.case, width),
        size=Interval(change.ratio, change.low, change.high),
        launches=change.launches,
        cause="" if told or not reason else f"{reason[0].upper()}{reason[1:]}.",
        facts={
            "measure": MEASURE_NAMES.get(change.measure, change.measure),
            "times": f"{change.ratio:.3f} times",
            "bounds": f"{change.low:.3f} to {change.high:.3f}",
            "p": f"{change.p:.2g}",
            "reason": reason,
        },
    )


def _power(comparison: Comparison) -> list[str]:
    visible = [change.smallest for change in comparison.changes if math.isfinite(change.smallest)]
    if visible:
        ratio = float(np.median(visible))
        smallest = f"{100 * (ratio - 1):.1f} %" if ratio < MAX_RATIO else "no change"
        return [f"smallest slowdown found with 80 % probability (median measure): {smallest}"]
    if comparison.count(INCONCLUSIVE):
        return ["one launch does not show how launches vary: hpcdl run SUITE --launches 6"]
    return []


def _notes(comparison: Comparison) -> list[str]:
    new = [change.case for change in comparison.changes if change.verdict == NEW]
    expired = [f"{accepted.case} (until {accepted.expires})" for accepted in comparison.expired]
    return [
        f"{title}: {_shortened(names[0], SHORT)}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
        for title, names in (("new", new), ("no longer accepted", expired))
        if names
    ]


def _label(change: Change) -> str:
    return f"{change.case} ({MEASURE_NAMES.get(change.measure, change.measure)})"


def _table(changes: Sequence[Change]) -> Table:
    header = ("measure", "verdict", "change %", "95 % low", "95 % high", "baseline", "candidate", "visible %")
    rows = [
        (
            f"{_label(change)}{': ' if change.reason else ''}{_shortened(change.reason, SHORT)}",
            change.verdict,
            *map(_percent, (change.ratio, change.low, change.high)),
            *(seconds(_known(time)) for time in (change.baseline, change.candidate)),
            f"{100 * (change.smallest - 1):.1f}" if change.smallest < MAX_RATIO else NONE,
        )
        for change in changes
    ]
    notes = ["Baseline and candidate: geometric means over launches or jobs. Change: of candidate by baseline."]
    return Table("", header, rows, 2, notes, answers=header[2:7])


def _figure(changes: Sequence[Change]) -> Intervals:
    known = sorted((one for one in changes if math.isfinite(one.ratio)), key=lambda one: -one.ratio)
    half = MAX_ROWS // 2
    shown = known if len(known) <= MAX_ROWS else [*known[:half], *known[-half:]]
    left_out = f" {len(known) - len(shown)} between the {half} largest and the {half} smallest are left out."
    return Intervals(
        "Time of the candidate by that of the baseline",
        [_label(one) for one in shown],
        [(one.ratio, _known(one.low), _known(one.high)) for one in shown],
        Axis("ratio of times", _ratio),
        1.0,
        "Right of the line the candidate is slower; bars are 95 % intervals."
        + (left_out if len(shown) < len(known) else ""),
    )


def _ratio(value: Number) -> str:
    return NONE if value is None else f"{value:.3f}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}" if math.isfinite(ratio) else NONE


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    left = (width - 3) // 2
    return f"{text[:left]}...{text[len(text) - (width - 3 - left) :]}"


VARIABLES: Final = re.compile(
    r"(UCX|MPICH|MPIR|FI|I_MPI|NCCL|CUDA|OPENBLAS|MKL|OMP|GOMP|KMP|NUMBA)_|OMPI_MCA_(btl|coll|mpi|mtl|osc|pml)(_|$)"
    r"|SLURM_JOB_PARTITION$"
)
"""Variables that change how fast a job is; others name the job, its processes or its files."""


def environment_changes(baseline: Sequence[RunSeries], candidate: Sequence[RunSeries]) -> list[str]:
    """Return one line per recorded fact that differs between the sides; the environment key's come first."""
    before, now = (
        " ".join(dict.fromkeys(key for run in side for key in run.environments)) for side in (baseline, candidate)
    )
    lines = []
    if set(before.split()) != set(now.split()):
        lines.append(f"environment key was {before or 'none'} and is {now or 'none'}")
        lines += differences(baseline[-1].environment, candidate[-1].environment)
    sides = [[_recorded_facts(run.environment) for run in runs] for runs in (baseline, candidate)]
    for name in dict.fromkeys(name for side in sides for facts in side for name in facts):
        texts = [" or ".join(sorted({facts.get(name, "not set") for facts in side})) for side in sides]
        if texts[0] != texts[1]:
            was, is_now = (_shortened(text, SHORT) for text in texts)
            lines.append(f"{name} was {was} and is {is_now}")
    return lines


def _recorded_facts(env: JsonMapping) -> dict[str, str]:
    cpu, software, git = (table(env, name) for name in ("cpu", "software", "git"))
    changed = "-dirty" if git.get("changed_files") else ""
    ranks = env.get("ranks") or ()
    facts = {
        "hpcdl": software.get("hpcdl"),
        "commit": f"{str(git['commit'])[:12]}{changed}" if git.get("commit") else None,
        "governor": cpu.get("governor"),
        "CPU quota": cpu.get("quota_cores"),
        "clock source": env.get("clocksource"),
        "hosts": " ".join(dict.fromkeys(str(rank.get("hostname")) for rank in ranks)),
        "cores of ranks": " ".join(dict.fromkeys(str(rank.get("affinity")) for rank in ranks)),
        **{name: value for name, value in table(env, "variables").items() if VARIABLES.match(name)},
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def record(
    comparison: Comparison, baseline: Sequence[RunSeries], candidate: Sequence[RunSeries], copies: Sequence[str]
) -> dict[str, object]:
    """Return the document for JSON; null for unknown values."""
    overall = verdict(comparison)
    return {
        "verdict": overall.word,
        "sentence": overall.sentence,
        "exit_code": overall.row.code,
        "min_effect": comparison.min_effect,
        "unit": comparison.unit,
        "between_jobs": comparison.between_jobs,
        "drift": comparison.drift.correlation,
        "baseline": [_run(run) for run in baseline],
        "candidate": [_run(run) for run in candidate],
        "copies": list(copies),
        "environment_differences": environment_changes(baseline, candidate),
        "link_counters": link_counters.records(_link_counters(baseline, candidate)),
        "measures": [_change(change) for change in comparison.changes],
        "accepted_expired": [_accepted(accepted) for accepted in comparison.expired],
        "accepted_unused": [_accepted(accepted) for accepted in comparison.unused],
    }


def _run(run: RunSeries) -> dict[str, object]:
    return {
        "run": run.path,
        "date": run.date or None,
        "job": run.job,
        "complete": run.complete,
        "environment_keys": list(run.environments),
    }


def _change(change: Change) -> dict[str, object]:
    numbers = {
        "baseline_seconds": change.baseline,
        "candidate_seconds": change.candidate,
        "ratio": change.ratio,
        "ratio_low": change.low,
        "ratio_high": change.high,
        "p_adjusted": change.p,
        "smallest_visible_ratio": change.smallest,
        "largest_undecided_ratio": change.largest if change.verdict == INCONCLUSIVE else math.nan,
    }
    return {
        "suite": change.suite,
        "case": change.case,
        "measure": change.measure,
        "verdict": change.verdict,
        "reason": change.reason or None,
        "sentence": verdict_of(change).sentence,
        "baseline_launches": change.launches[0],
        "candidate_launches": change.launches[1],
        **{name: _known(value) for name, value in numbers.items()},
    }


def _accepted(accepted: Accepted) -> dict[str, str]:
    return {"case": accepted.case, "reason": accepted.reason, "expires": accepted.expires.isoformat()}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def tests(comparison: Comparison, text: str) -> list[TestSuite]:
    """Return a test case per case and measure; ``text`` is the page on a terminal."""
    cases = []
    for change in comparison.changes:
        one = [verdict_of(change)]
        cases.append(TestCase.of(change.suite, f"{change.case} {change.measure}", one))
    return [TestSuite("hpcdl compare", cases, text.split("\n"))]
