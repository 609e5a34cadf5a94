"""The document that ``hpcdl history --json`` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.over_time.calibration import Calibration
    from hpcdl.analysis.over_time.history import History
    from hpcdl.analysis.over_time.suspects import Suspect
    from hpcdl.analysis.over_time.verdict import Event, SuiteVerdict


def render(
    found: Sequence[SuiteVerdict], skipped: Sequence[str], calibrations: Mapping[str, Calibration], exit_code: int
) -> str:
    """Return the document as ASCII text; null for unknown values."""
    suites = [_suite(one, calibrations.get(one.history.suite)) for one in found]
    document = {"schema": 1, "exit_code": exit_code, "suites": suites, "skipped": list(skipped)}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _suite(found: SuiteVerdict, calibration: Calibration | None) -> dict[str, Any]:
    history, findings = found.history, found.findings
    return {
        "suite": history.suite,
        "verdict": found.verdict,
        "runs": [
            {"run": job.path, "date": job.date, "environment_keys": sorted(job.keys), "hosts": job.hosts}
            for job in history.jobs
        ],
        "judged": findings.judged,
        "too_few_runs": findings.short,
        "age_hours": None if found.age is None else found.age.total_seconds() / 3600,
        "events": [_event(found, event) for event in findings.events],
        "slow": [
            {
                **_named(history, one),
                "open": one in found.open_suspects or any(one in e.suspects for e in found.open_events),
            }
            for one in findings.suspects
        ],
        "spread": findings.spread and findings.spread._asdict(),
        "below_floor": [
            {
                **_series(history, one.series),
                **_runs(history, one.first, one.found),
                "busbw_bytes_per_second": one.rate,
                "nominal_bytes_per_second": one.nominal,
                "open": one in found.open_below_floor,
            }
            for one in found.below_floor
        ],
        "missing": [{"case": case, "reason": reason} for case, reason in found.missing],
        "environment_changes": [history.jobs[one].path for one in history.environment_changes()],
        "measures": [_measure(history, one) for one in range(len(history.keys))],
        "calibration": None if calibration is None else _calibration(calibration),
    }


def _event(found: SuiteVerdict, event: Event) -> dict[str, Any]:
    history = found.history
    return {
        "verdict": event.verdict,
        "open": event in found.open_events,
        "accepted": event in found.accepted_events,
        **_runs(history, event.first, event.found),
        "ratio": event.ratio,
        "new_environment": event.environment,
        "likely": [_named(history, suspect) for suspect in event.suspects],
        "changes": [
            {
                **_series(history, change.series),
                **_runs(history, change.first, change.found),
                "ratio": change.ratio.value,
                "ratio_low": change.ratio.low,
                "ratio_high": change.ratio.high,
                "p": change.p,
                "open": change in event.open,
            }
            for change in event.changes
        ],
    }


def _series(history: History, series: int) -> dict[str, Any]:
    key, case = history.keys[series], history.case(series)
    return {
        "case": key.case,
        "measure": key.measure,
        "environment_key": key.environment_key,
        "kind": case.kind,
        "ranks": case.ranks,
        "message_bytes": case.message_bytes,
    }


def _runs(history: History, first: int, found: int) -> dict[str, str]:
    return {
        "first_run": history.jobs[first].path,
        "first_date": history.jobs[first].date,
        "found_by_run": history.jobs[found].path,
        "found_date": history.jobs[found].date,
    }


def _named(history: History, one: Suspect) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "source": one.source,
        **_runs(history, one.first, one.found),
        "cleared_by_run": None if one.ended is None else history.jobs[one.ended].path,
        "probability": one.probability,
        "ratio": one.ratio,
        "runs": one.runs,
    }


def _measure(history: History, series: int) -> dict[str, Any]:
    seconds = history.seconds[series]
    known = np.isfinite(seconds)
    return {
        **_series(history, series),
        "runs": int(known.sum()),
        "seconds": [float(value) if there else None for value, there in zip(seconds, known, strict=True)],
    }


def _calibration(found: Calibration) -> dict[str, Any]:
    return {
        "rounds": found.rounds,
        "runs": found.runs,
        "false_regressions_per_100_runs": found.regressed,
        "false_improvements_per_100_runs": found.improved,
        "steps_found": found.found,
        "median_delay_runs": None if found.delay in {None, float("inf")} else found.delay,
    }
