"""The document that ``--json`` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pandas as pd

from hpcdl.analysis.run.record_fields import settings
from hpcdl.report.prediction.predictions import described
from hpcdl.report.run.findings import findings
from hpcdl.report.run.rows import rows
from hpcdl.report.run.warnings import not_run, unfinished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.scaling import Record
    from hpcdl.report.run.findings import Findings
    from hpcdl.trace.run import Run


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row per case and seed; an unknown value is missing."""
    return pd.DataFrame(cases(findings(runs)))


def cases(runs: Sequence[Findings]) -> list[Record]:
    """Return the rows of all runs, each with the case's settings; ``schema.json`` has the types."""
    return [{**row, "settings": settings(row)} for run in rows(runs) for row in run.records]


def render(runs: Sequence[Findings]) -> str:
    """``{"schema": 1, "cases": [...], "networks": [...], "runs": [...]}``: SI units, null for unknown values.

    ``networks``: the network fitted to the collectives and exchanges of each run with enough of them, from which
    their ``predicted_seconds`` follow. ``runs``: of each whether every case of its suite has a result, and the
    cases that failed before they had one, or cannot be run where it was made. Texts are ASCII: JSON has escapes
    for all other characters.
    """
    rows_of_runs = rows(runs)
    networks = [
        {"run": run.run, **described(run.fitted.network, run.fitted.certainty)}
        for run in rows_of_runs
        if run.fitted
    ]
    about_runs = [
        {
            "run": run.name,
            "complete": run.run.complete,
            "failed_cases": unfinished(run.run),
            "cases_not_run": not_run(run.run),
        }
        for run in runs
    ]
    document = {"schema": 1, "cases": cases(runs), "networks": networks, "runs": about_runs}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
