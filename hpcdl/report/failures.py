"""Cases without a valid result: failed, wrong, not run, or with a failed process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.report.formatting import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.trace.run import Run


def failures(records: Sequence[Record]) -> list[str]:
    """Return the cases that failed or whose result is wrong."""
    return [
        f"case {case_name(record)}: {record.get('error') or 'wrong result'}"
        for record in records
        if record.get("error") or record.get("correct") is False
    ]


def unfinished(run: Run) -> list[dict[str, Any]]:
    """Return the cases that failed before they had a result: case, rank (None: unknown), error."""
    return _listed(run, "failed_cases")


def not_run(run: Run) -> list[dict[str, Any]]:
    """Return the cases that cannot be run where this run was made: case, error."""
    return _listed(run, "cases_not_run")


def _listed(run: Run, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.environment.get(name, [])
    return found


def without_result(run: Run) -> list[str]:
    """One line per case that failed before it had a result, and one per reason not to run cases."""
    lines = []
    for one in unfinished(run):
        rank = "" if one.get("rank") is None else f"rank {one['rank']}: "
        lines.append(f"FAILED case {one.get('case')}: {rank}{one.get('error')}")
    reasons: dict[str, list[str]] = {}
    for one in not_run(run):
        reasons.setdefault(str(one.get("error")), []).append(str(one.get("case")))
    return lines + [f"NOT RUN {', '.join(cases)}: {why}" for why, cases in reasons.items()]


def failed_processes(run: Run) -> list[str]:
    """Return one line per fault-injection case: the rank that failed and its step, or that none did."""
    lines = [
        f"case {case_name(fields)}: {fields['process_failure']} failed, and the others went on."
        if fields.get("process_failure")
        else f"case {case_name(fields)}: no rank failed; the failure to inject was {fields['failure']}."
        for fields in run.described
        if fields.get("failure")
    ]
    return list(dict.fromkeys(lines))


def case_name(record: Mapping[str, Any]) -> str:
    """Return the case's name with its ranks and seed."""
    seed = "" if record["seed"] is None else f", seed {record['seed']}"
    return f"{record['case'] or record['aggregation']} ({plural(record['ranks'], 'rank')}{seed})"
