"""A comparison of runs as a page, as JSON and as JUnit XML.

The page has differences of the environments, the verdict, then all measures, the worst first.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hpcdl.analysis.over_time.regressions import (
    BAD,
    IMPROVED,
    INCONCLUSIVE,
    MEASURE_NAMES,
    MISSING,
    NEW,
    REGRESSED,
    VERDICTS,
    Accepted,
    Change,
    Comparison,
)
from hpcdl.analysis.over_time.regressions import FAILED as FAILED_CASE
from hpcdl.analysis.over_time.series import RunSeries
from hpcdl.analysis.run.cores import facts as table
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.exit_codes import FAILED
from hpcdl.launch.environment import differences
from hpcdl.report.formats.cells import NONE, plural
from hpcdl.report.formats.charts import Chart
from hpcdl.report.formats.document import Document, Section, Table
from hpcdl.report.formats.junit import TestCase, TestSuite, written
from hpcdl.report.verdicts import Verdict

FACTS: Final = 8
"""Differences of the environment, at most; --json has all."""
SHORT: Final = 60
"""Longest reason in the table (characters)."""
MAX_RATIO: Final = 10.0
"""Largest ratio that is shown as the smallest visible one; beyond it a comparison sees nothing."""


def page(
    comparison: Comparison,
    baseline: Sequence[RunSeries],
    candidate: Sequence[RunSeries],
    copies: Sequence[str] = (),
) -> Document:
    """Return the page; ``copies``: one line per run that was given twice."""
    return Document(
        "Comparison of runs",
        [
            Section(
                "Runs and environment",
                [*_runs(comparison, baseline, candidate), *copies],
                _facts(baseline, candidate),
            ),
            Section("Verdict", points=[*_headline(comparison), *_notes(comparison)]),
            Section("All measures, worst first", tables=[_table(comparison.changes)]),
        ],
    )


def html(document: Document, overall: Verdict) -> str:
    """Return the page in HTML, the verdict first; it is green if the comparison is unchanged or improved."""
    from hpcdl.report.formats.html import Source, headed, written  # late: it needs jinja2

    runs, headline, measures = document.sections
    contents: list[tuple[Section, list[Chart]]] = [(section, []) for section in (headed(headline), runs, measures)]
    return written([Source(document, contents, overall.row.code == FAILED, overall.row.good)])


def _runs(comparison: Comparison, baseline: Sequence[RunSeries], candidate: Sequence[RunSeries]) -> list[str]:
    lines = []
    for name, runs, jobs in zip(("Baseline", "Candidate"), (baseline, candidate), comparison.jobs, strict=True):
        dates = sorted(run.date for run in runs if run.date)
        begin, end = (f"{date[:16].replace('T', ' ')}" for date in (dates[0], dates[-1])) if dates else ("", "")
        when = ", ".join(dict.fromkeys(filter(None, [begin, end]))).replace(", ", " to ")
        launches = f"{len(runs)} launch{'' if len(runs) == 1 else 'es'} of {plural(jobs, 'job')}"
        first = f"from {runs[0].path} on" if len(runs) > 1 else runs[0].path
        lines.append(f"{name}: {', '.join(filter(None, [launches, when, first]))}.")
    if comparison.between_jobs and len(baseline) + len(candidate) > 2:
        share = f"{100 * comparison.between_jobs:g} % (--between-jobs)"
        lines.append(f"Each side is one job. Jobs are taken to vary by {share}: compare several jobs.")
    if comparison.unit == "job":
        lines.append("The unit is the job: the median of its launches.")
    if min(len(baseline), len(candidate)) == 1 < max(len(baseline), len(candidate)):
        lines.append("One side is one launch, whose outliers look like changes: repeat it before you act.")
    unused = ", ".join(accepted.case for accepted in comparison.unused)
    return lines + ([f"Accepted regressions that match no case: {unused}."] if unused else [])


def _facts(baseline: Sequence[RunSeries], candidate: Sequence[RunSeries]) -> list[str]:
    facts = environment_changes(baseline, candidate)
    more = [f"{len(facts) - FACTS} more differences; --json has all"] if len(facts) > FACTS else []
    return facts[:FACTS] + more or ["the environments are the same in all recorded facts"]


def verdict(comparison: Comparison) -> Verdict:
    """Return the verdict of all measures, with the sentence of the worst one, or of the one that improved most."""
    counts = ", ".join(f"{comparison.count(word)} {word}" for word in VERDICTS if comparison.count(word))
    cases = len({(change.suite, change.case) for change in comparison.changes})
    improved = [change for change in comparison.changes if change.verdict == comparison.verdict == IMPROVED]
    worst = verdict_of((improved or comparison.changes)[-1 if improved else 0], SHORT)
    measures = f"{plural(len(comparison.changes), 'measure')} of {plural(cases, 'case')}"
    facts = {"worst": worst.sentence, "measures": measures, "counts": counts}
    return Verdict(
        topic="comparison", word=comparison.verdict, size=worst.size, launches=worst.launches, facts=facts
    )


def verdict_of(change: Change, width: int = 10_000) -> Verdict:
    """Return the verdict of one measure; ``width``: longest name and reason (characters)."""
    reason = _shortened(change.reason, width).rstrip(".")
    word = f"{change.verdict} by shares" if change.by_share and change.verdict == REGRESSED else change.verdict
    if change.verdict == INCONCLUSIVE and math.isnan(change.p):
        word = "not compared"
    told = word in {FAILED_CASE, MISSING, "not compared"}  # the sentence has the reason
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


def _headline(comparison: Comparison) -> list[str]:
    lines = [verdict(comparison).sentence]
    visible = [change.smallest for change in comparison.changes if math.isfinite(change.smallest)]
    if visible:
        smallest = _visible(float(np.median(visible)))
        lines.append(f"smallest slowdown found with 80 % probability (median measure): {smallest}")
    elif comparison.count(INCONCLUSIVE):
        lines.append("one launch does not show how launches vary: hpcdl run SUITE --launches 6")
    return lines


def _notes(comparison: Comparison) -> list[str]:
    new = [change.case for change in comparison.changes if change.verdict == NEW]
    expired = [f"{accepted.case} (until {accepted.expires})" for accepted in comparison.expired]
    return [
        f"{title}: {_shortened(names[0], SHORT)}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
        for title, names in (("new", new), ("no longer accepted", expired))
        if names
    ]


def _table(changes: Iterable[Change]) -> Table:
    header = ("case", "measure", "verdict", "change %", "95 % low", "95 % high", "visible %")
    rows = [
        (
            f"{change.case}{': ' if change.reason else ''}{_shortened(change.reason, SHORT)}",
            MEASURE_NAMES.get(change.measure, change.measure),
            change.verdict,
            *(
                f"{100 * (ratio - 1):+.1f}" if math.isfinite(ratio) else NONE
                for ratio in (change.ratio, change.low, change.high)
            ),
            f"{100 * (change.smallest - 1):.1f}" if change.smallest < MAX_RATIO else NONE,
        )
        for change in changes
    ]
    return Table("", header, rows, 3)


def _visible(ratio: float) -> str:
    return f"{100 * (ratio - 1):.1f} %" if ratio < MAX_RATIO else "no change"


def _shortened(text: str, width: int) -> str:
    """Return text without its middle if it is longer than ``width``."""
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


def _recorded_facts(env: Mapping[str, Any]) -> dict[str, str]:
    """Return recorded facts that are no part of the environment key."""
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


def json_text(
    comparison: Comparison, baseline: Sequence[RunSeries], candidate: Sequence[RunSeries], copies: Sequence[str]
) -> str:
    """Return the document as ASCII text; null for unknown values."""
    overall = verdict(comparison)
    document = {
        "schema": 1,
        "verdict": overall.word,
        "sentence": overall.sentence,
        "exit_code": overall.row.code,
        "min_effect": comparison.min_effect,
        "unit": comparison.unit,
        "between_jobs": comparison.between_jobs,
        "baseline": [_run(run) for run in baseline],
        "candidate": [_run(run) for run in candidate],
        "copies": list(copies),
        "environment_differences": environment_changes(baseline, candidate),
        "measures": [_change(change) for change in comparison.changes],
        "accepted_expired": [_accepted(accepted) for accepted in comparison.expired],
        "accepted_unused": [_accepted(accepted) for accepted in comparison.unused],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _run(run: RunSeries) -> dict[str, Any]:
    return {
        "run": run.path,
        "date": run.date or None,
        "job": run.job,
        "complete": run.complete,
        "environment_keys": list(run.environments),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "suite": change.suite,
        "case": change.case,
        "measure": change.measure,
        "verdict": change.verdict,
        "reason": change.reason or None,
        "sentence": verdict_of(change).sentence,
        "baseline_launches": change.launches[0],
        "candidate_launches": change.launches[1],
        "baseline_seconds": _known(change.baseline),
        "candidate_seconds": _known(change.candidate),
        "ratio": _known(change.ratio),
        "ratio_low": _known(change.low),
        "ratio_high": _known(change.high),
        "p_adjusted": _known(change.p),
        "smallest_visible_ratio": _known(change.smallest),
    }


def _accepted(accepted: Accepted) -> dict[str, str]:
    return {"case": accepted.case, "reason": accepted.reason, "expires": accepted.expires.isoformat()}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def junit(comparison: Comparison, text: str, now: dt.datetime) -> str:
    """Return JUnit XML: a test case per case and measure; ``text`` is the page on a terminal, ``now``: in UTC.

    One that regressed, failed or is missing is a failure, an inconclusive one is skipped, all others pass.
    """
    cases = [
        TestCase(
            change.suite,
            f"{change.case} {change.measure}",
            change.verdict if change.verdict in BAD else "",
            [verdict_of(change).sentence],
            verdict_of(change).sentence if change.verdict == INCONCLUSIVE else "",
        )
        for change in comparison.changes
    ]
    return written([TestSuite("hpcdl compare", cases, text.split("\n"))], now)
