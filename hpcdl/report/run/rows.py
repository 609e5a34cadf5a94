"""Rows of the CSV and JSON documents: one per case and seed; ``README.md`` in this folder explains the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpcdl.analysis.run.cores import UNKNOWN
from hpcdl.analysis.run.record_fields import CONTRACT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.scaling import Record
    from hpcdl.prediction.fitted import Fitted
    from hpcdl.report.run.findings import Findings


ORIGIN: Final = (
    *("run", "date", "hosts", "mpi_library", "mpi_version", "hpcdl_version", "commit", "environment_key"),
    "slurm_job",
)
"""Columns that say when, where and with what software a row was measured."""


class Rows(NamedTuple):
    """The rows of one run."""

    run: str
    records: list[Record]
    fitted: Fitted | None
    """The network that was fitted to the run's collectives; ``predicted_seconds`` comes from it."""


def rows(findings: Sequence[Findings]) -> list[Rows]:
    """Return the rows of each run; an unknown value is None."""
    return [
        Rows(
            run.name,
            [_with_origin(run, record) for record in (run.predicted.records if run.predicted else run.records)],
            run.predicted.fitted if run.predicted else None,
        )
        for run in findings
    ]


def _with_origin(findings: Findings, record: Record) -> Record:
    """Add the columns of :data:`ORIGIN`, unless the case has its own."""
    run = findings.run
    env = run.environments.get(str(record.get("environment_key")), run.environment)
    mpi, software, git, variables = (_table(env.get(key)) for key in ("mpi", "software", "git", "variables"))
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


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
