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
    found: Comparison, baseline: Sequence[RunSeries], candidate: Sequence[RunSeries], exit_code: int
) -> str:
    """Return the document as ASCII text; null for unknown values."""
    document = {
        "schema": 1,
        "verdict": found.verdict,
        "exit_code": exit_code,
        "min_effect": found.min_effect,
        "unit": found.unit,
        "between_jobs": found.between_jobs,
        "baseline": [_run(run) for run in baseline],
        "candidate": [_run(run) for run in candidate],
        "environment_differences": environment_changes(baseline, candidate),
        "baseline_drift": found.drift
        and {"ratio": found.drift.ratio, "p": found.drift.p, "runs": found.drift.runs},
        "measures": [_change(one) for one in found.changes],
        "accepted_expired": [_accepted(one) for one in found.expired],
        "accepted_unused": [_accepted(one) for one in found.unused],
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


def _change(one: Change) -> dict[str, Any]:
    return {
        "suite": one.suite,
        "case": one.case,
        "measure": one.measure,
        "verdict": one.verdict,
        "reason": one.reason or None,
        "baseline_launches": one.launches[0],
        "candidate_launches": one.launches[1],
        "baseline_seconds": _known(one.baseline),
        "candidate_seconds": _known(one.candidate),
        "ratio": _known(one.ratio),
        "ratio_low": _known(one.low),
        "ratio_high": _known(one.high),
        "p_adjusted": _known(one.p),
        "smallest_visible_ratio": _known(one.smallest),
        "smallest_visible_ratio_alone": _known(one.smallest_alone),
    }


def _accepted(one: Accepted) -> dict[str, str]:
    return {"case": one.case, "reason": one.reason, "expires": one.expires.isoformat()}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def junit(found: Comparison, text: str, now: dt.datetime) -> str:
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
        for change in found.changes
    ]
    return written([TestSuite("hpcdl compare", cases, text.split("\n"))], now)


def _message(one: Change) -> str:
    numbers = ""
    if math.isfinite(one.ratio):
        numbers = f"{one.baseline:.6g} s became {one.candidate:.6g} s, a ratio of {one.ratio:.4f}"
    if math.isfinite(one.p):
        numbers += f" ({one.low:.4f} to {one.high:.4f}), adjusted p = {one.p:.2g}"
    return "; ".join(filter(None, [one.verdict, numbers, one.reason]))
