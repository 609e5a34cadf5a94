"""A comparison as JSON and as JUnit XML."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from hpcdl.analysis.over_time.change import BAD, INCONCLUSIVE
from hpcdl.report.comparison.environment_changes import environment_changes
from hpcdl.report.formats.junit import TestCase, TestSuite, written

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from hpcdl.analysis.over_time.change import Accepted, Change
    from hpcdl.analysis.over_time.regressions import Comparison
    from hpcdl.analysis.over_time.series import RunSeries


def json_text(
    comparison: Comparison, baseline: Sequence[RunSeries], candidate: Sequence[RunSeries], exit_code: int
) -> str:
    """Return the document as ASCII text; null for unknown values."""
    document = {
        "schema": 1,
        "verdict": comparison.verdict,
        "exit_code": exit_code,
        "min_effect": comparison.min_effect,
        "unit": comparison.unit,
        "between_jobs": comparison.between_jobs,
        "baseline": [_run(run) for run in baseline],
        "candidate": [_run(run) for run in candidate],
        "environment_differences": environment_changes(baseline, candidate),
        "baseline_drift": comparison.drift
        and {"ratio": comparison.drift.ratio, "p": comparison.drift.p, "runs": comparison.drift.runs},
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
        "baseline_launches": change.launches[0],
        "candidate_launches": change.launches[1],
        "baseline_seconds": _known(change.baseline),
        "candidate_seconds": _known(change.candidate),
        "ratio": _known(change.ratio),
        "ratio_low": _known(change.low),
        "ratio_high": _known(change.high),
        "p_adjusted": _known(change.p),
        "smallest_visible_ratio": _known(change.smallest),
        "smallest_visible_ratio_alone": _known(change.smallest_alone),
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
            [_message(change)],
            _message(change) if change.verdict == INCONCLUSIVE else "",
        )
        for change in comparison.changes
    ]
    return written([TestSuite("hpcdl compare", cases, text.split("\n"))], now)


def _message(change: Change) -> str:
    numbers = ""
    if math.isfinite(change.ratio):
        numbers = f"{change.baseline:.6g} s became {change.candidate:.6g} s, a ratio of {change.ratio:.4f}"
    if math.isfinite(change.p):
        numbers += f" ({change.low:.4f} to {change.high:.4f}), adjusted p = {change.p:.2g}"
    return "; ".join(filter(None, [change.verdict, numbers, change.reason]))
