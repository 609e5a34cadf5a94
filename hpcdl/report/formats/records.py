"""Records of runs as CSV, as JSON and as a pandas frame: one row per case and seed.

``README.md`` in ``hpcdl/report`` explains the columns, ``schema.json`` has their types.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pandas as pd

from hpcdl.analysis.run.cores import UNKNOWN, facts
from hpcdl.analysis.run.record_fields import CONTRACT, settings
from hpcdl.analysis.run.scaling import Record
from hpcdl.report.formats.cells import visible
from hpcdl.report.predictions import described
from hpcdl.report.run.findings import Findings, findings
from hpcdl.report.run.warnings import not_run, unfinished
from hpcdl.trace.run import Run

ORIGIN: Final = (
    *("run", "date", "hosts", "mpi_library", "mpi_version", "hpcdl_version", "commit", "environment_key"),
    "slurm_job",
)
"""Columns that say when, where and with what software a row was measured."""


def cases(runs: Sequence[Findings]) -> list[Record]:
    """Return the rows of all runs, each with the case's settings; an unknown value is None."""
    return [{**row, "settings": settings(row)} for row in _rows(runs)]


def _rows(runs: Sequence[Findings]) -> list[Record]:
    return [
        _with_origin(run, record)
        for run in runs
        for record in (run.predicted.records if run.predicted else run.records)
    ]


def _with_origin(findings: Findings, record: Record) -> Record:
    """Add the columns of :data:`ORIGIN`, unless the case has its own."""
    run = findings.run
    env = run.environments.get(str(record.get("environment_key")), run.environment)
    mpi, software, git, variables = (facts(env, key) for key in ("mpi", "software", "git", "variables"))
    processes = 1 if record.get("network") else record["ranks"]
    hosts = dict.fromkeys(str(rank.get("hostname")) for rank in (env.get("ranks") or ())[:processes])
    changed = "-dirty" if git.get("changed_files") else ""
    array, task = (variables.get(f"SLURM_ARRAY_{word}_ID") for word in ("JOB", "TASK"))
    origin = {
        "date": env.get("date"),
        "hosts": " ".join(hosts),
        "mpi_library": mpi.get("library"),
        "mpi_version": mpi.get("version"),
        "hpcdl_version": software.get("hpcdl"),
        "commit": f"{git['commit']}{changed}" if git.get("commit") else None,
        "environment_key": env.get("key"),
        "slurm_job": f"{array}_{task}" if array else variables.get("SLURM_JOB_ID"),
    }
    known = {key: None if value in ("", UNKNOWN) else value for key, value in origin.items()}
    first = {column: record.get(column) for column in CONTRACT}
    return {**first, "run": findings.name, **known, **record}


FORMULA: Final = ("=", "+", "-", "@")
"""First characters of a formula."""


def csv_text(findings: Sequence[Findings]) -> str:
    """Return SI units in full precision; an unknown value is an empty cell."""
    cells = [
        {_text(name): _text(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in _rows(findings)
    ]
    return pd.DataFrame(cells, dtype=object).to_csv(index=False, lineterminator="\n")


def _text(value: str) -> str:
    """Return text that no spreadsheet takes for a formula: one that could be begins with an apostrophe."""
    text = visible(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row per case and seed; an unknown value is missing."""
    return pd.DataFrame(cases(findings(runs)))


def json_text(runs: Sequence[Findings]) -> str:
    """``{"schema": 1, "cases": [...], "networks": [...], "runs": [...]}``: SI units, null for unknown values.

    ``networks``: the network fitted to the collectives and exchanges of each run with enough of them, from which
    their ``predicted_seconds`` follow. ``runs``: of each whether every case of its suite has a result, and the
    cases that failed before they had one, or cannot be run where it was made. Texts are ASCII: JSON has escapes
    for all other characters.
    """
    networks = [
        {"run": run.name, **described(run.predicted.fitted.network, run.predicted.fitted.certainty)}
        for run in runs
        if run.predicted
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
