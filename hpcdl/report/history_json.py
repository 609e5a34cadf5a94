"""The document that ``hpcdl history --json`` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.calibration import Calibration
    from hpcdl.analysis.findings_over_time import Event
    from hpcdl.analysis.history import History
    from hpcdl.analysis.suspects import Named
    from hpcdl.analysis.verdict_over_time import Judged


def render(
    found: Sequence[Judged], skipped: Sequence[str], calibrations: Mapping[str, Calibration], exit_code: int
) -> str:
    """Return the document as ASCII text; null for unknown values."""
    suites = [_suite(one, calibrations.get(one.history.suite)) for one in found]
    document = {"schema": 1, "exit_code": exit_code, "suites": suites, "skipped": list(skipped)}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _suite(found: Judged, calibration: Calibration | None) -> dict[str, Any]:
    history, judgement = found.history, found.judgement
    return {
        "suite": history.suite,
        "verdict": found.verdict,
        "runs": [
            {"run": job.path, "date": job.date, "environment_keys": sorted(job.keys), "hosts": job.hosts}
            for job in history.jobs
        ],
        "judged": judgement.judged,
        "too_few_runs": judgement.short,
        "events": [_event(history, one, new=one in found.new_events) for one in judgement.events],
        "drifts": [
            {
                **_series(history, one.series),
                **_runs(history, one.first, one.found),
                "ratio": one.ratio,
                "new": one in found.new_drifts,
            }
            for one in judgement.drifts
        ],
        "slow": [{**_named(history, one), "new": one in found.new_culprits} for one in judgement.culprits],
        "below_floor": [
            {
                **_series(history, one.series),
                **_runs(history, one.first, one.found),
                "busbw_bytes_per_second": one.rate,
                "nominal_bytes_per_second": one.nominal,
                "new": one in found.new_below_floor,
            }
            for one in found.below_floor
        ],
        "missing": [{"case": case, "reason": reason} for case, reason in found.missing],
        "environment_changes": [history.jobs[one].path for one in history.environment_changes()],
        "measures": [_measure(history, one) for one in range(len(history.keys))],
        "calibration": None if calibration is None else _calibration(calibration),
    }


def _event(history: History, event: Event, *, new: bool) -> dict[str, Any]:
    return {
        "verdict": event.verdict,
        "new": new,
        **_runs(history, event.first, event.found),
        "ratio": event.ratio,
        "likely": None if event.culprit is None else _named(history, event.culprit),
        "changes": [
            {
                **_series(history, one.series),
                **_runs(history, one.first, one.found),
                "ratio": one.ratio.value,
                "ratio_low": one.ratio.low,
                "ratio_high": one.ratio.high,
                "p": one.p,
            }
            for one in event.changes
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


def _named(history: History, one: Named) -> dict[str, Any]:
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
