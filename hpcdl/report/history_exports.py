"""A history as JSON, as JUnit XML and as OpenMetrics text."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdl.analysis.over_time.change_points import AFTER, BEFORE, Calibration
from hpcdl.analysis.over_time.history import History
from hpcdl.analysis.over_time.suspects import Suspect
from hpcdl.analysis.over_time.verdict import Event, SuiteVerdict
from hpcdl.report.formats.cells import visible
from hpcdl.report.formats.junit import TestCase, TestSuite, written
from hpcdl.report.history import label, of_event, signed, verdicts, worst


def json_text(
    suites: Sequence[SuiteVerdict],
    skipped: Sequence[str],
    calibrations: Mapping[str, Calibration],
    exit_code: int,
) -> str:
    """Return the document as ASCII text; null for unknown values."""
    records = [_suite_record(verdict, calibrations.get(verdict.history.suite)) for verdict in suites]
    document = {"schema": 1, "exit_code": exit_code, "suites": records, "skipped": list(skipped)}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _suite_record(verdict: SuiteVerdict, calibration: Calibration | None) -> dict[str, Any]:
    history, findings = verdict.history, verdict.findings
    said = verdicts(verdict)
    return {
        "suite": history.suite,
        "verdict": worst(said),
        "verdicts": [one.record() for one in said],
        "runs": [
            {"run": job.path, "date": job.date, "environment_keys": sorted(job.keys), "hosts": job.hosts}
            for job in history.jobs
        ],
        "judged": findings.judged,
        "too_few_runs": sum(one.reason == "short" for one in findings.waiting),
        "age_hours": None if verdict.age is None else verdict.age.total_seconds() / 3600,
        "events": [_event(verdict, event) for event in findings.events],
        "slow": [
            {
                **_named(history, suspect),
                "open": suspect in verdict.open_suspects
                or any(suspect in e.suspects for e in verdict.open_events),
            }
            for suspect in findings.suspects
        ],
        "missing": [{"case": case, "reason": reason} for case, reason in verdict.missing],
        "environment_changes": [history.jobs[change].path for change in history.environment_changes()],
        "measures": [_measure(history, series) for series in range(len(history.keys))],
        "calibration": calibration
        and {
            "rounds": calibration.rounds,
            "false_regressions_per_100_runs": calibration.regressed,
            "false_improvements_per_100_runs": calibration.improved,
        },
    }


def _event(verdict: SuiteVerdict, event: Event) -> dict[str, Any]:
    history = verdict.history
    return {
        "verdict": event.verdict,
        "open": event in verdict.open_events,
        "accepted": event in verdict.accepted_events,
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


def _runs(history: History, first: int, number: int) -> dict[str, str]:
    return {
        "first_run": history.jobs[first].path,
        "first_date": history.jobs[first].date,
        "found_by_run": history.jobs[number].path,
        "found_date": history.jobs[number].date,
    }


def _named(history: History, suspect: Suspect) -> dict[str, Any]:
    return {
        "name": suspect.name,
        "kind": suspect.kind,
        "source": suspect.source,
        **_runs(history, suspect.first, suspect.found),
        "cleared_by_run": None if suspect.ended is None else history.jobs[suspect.ended].path,
        "ratio": suspect.ratio,
        "runs": suspect.runs,
    }


def _measure(history: History, series: int) -> dict[str, Any]:
    seconds = history.seconds[series]
    known = np.isfinite(seconds)
    return {
        **_series(history, series),
        "runs": int(known.sum()),
        "seconds": [float(value) if there else None for value, there in zip(seconds, known, strict=True)],
    }


def junit(suites: Sequence[SuiteVerdict], now: dt.datetime) -> str:
    """Return JUnit XML: a test case per suite, kind of case, ranks and measure; ``now``: in UTC.

    A group with an open change fails, one with too few runs is skipped.
    """
    return written([_tests(verdict) for verdict in suites], now)


def _tests(verdict: SuiteVerdict) -> TestSuite:
    history, known = verdict.history, np.isfinite(verdict.history.seconds)
    groups: dict[str, list[int]] = {}
    group_of: dict[tuple[str, ...], str] = {}
    for row in np.flatnonzero(known[:, -1]).tolist():
        case, key = history.case(row), history.keys[row]
        group = group_of.setdefault(key[:3], f"{case.kind}, {case.ranks} ranks, {key.measure}")
        groups.setdefault(group, []).append(row)
    whole = [f"{case}: missing: {reason}" for case, reason in verdict.missing]
    whole += [f"slow: {suspect.kind} {suspect.name}" for suspect in verdict.open_suspects]
    failures: dict[str, list[str]] = {**{group: [] for group in groups}, "hosts, links and cases": whole}
    for change in (change for event in verdict.open_events for change in event.open):
        since = f"{signed(change.ratio.value)} since {history.jobs[change.first].path}"
        group = group_of.get(history.keys[change.series][:3], "hosts, links and cases")
        failures[group].append(f"{label(history, change.series)}: {since}")
    few = {group for group, rows in groups.items() if (known[rows].sum(axis=1) < BEFORE + AFTER).all()}
    cases = [
        TestCase(
            history.suite,
            group,
            "regressed" if lines else "",
            lines,
            f"fewer than {BEFORE + AFTER} runs" if group in few else "",
        )
        for group, lines in failures.items()
    ]
    events = [of_event(verdict, event).sentence for event in verdict.findings.events]
    return TestSuite(f"hpcdl history: {history.suite}", cases, events)


Sample = tuple[dict[str, str], float]


def openmetrics(suites: Sequence[SuiteVerdict], exit_code: int) -> str:
    """Return the text.

    Only gauges: the text-file collector of Prometheus' node exporter reads an older format, which has them alike.
    Rules of names and escapes: https://prometheus.io/docs/specs/om/open_metrics_spec/
    """
    lines = [*_family("hpcdl_history_exit_code", "Exit code of hpcdl history.", [({}, exit_code)])]
    families: dict[str, tuple[str, Callable[[SuiteVerdict], float]]] = {
        "runs": ("Runs in the archive.", lambda verdict: len(verdict.history.jobs)),
        "newest_run_timestamp_seconds": ("Start of the newest run.", _timestamp),
        "judged_measures": ("Measures with enough runs.", lambda verdict: verdict.findings.judged),
        "missing_cases": ("Cases that the newest run lacks.", lambda verdict: len(verdict.missing)),
        "open_regressions": ("Neither repaired nor accepted.", lambda verdict: len(verdict.open_events)),
        "accepted_regressions": ("Accepted regressions.", lambda verdict: len(verdict.accepted_events)),
    }
    for name, (text, value) in families.items():
        samples = [({"suite": verdict.history.suite}, value(verdict)) for verdict in suites]
        lines += _family(f"hpcdl_history_{name}", text, samples)
    lines += _family("hpcdl_history_slow_ratio", "Hosts and links that are slow now.", _slow(suites))
    lines += _family("hpcdl_case_time_seconds", "Newest time of each measure.", _times(suites))
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(name: str, text: str, samples: Sequence[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        yield f"{name}{{{inside}}} {value:.9g}" if inside else f"{name} {value:.9g}"


def _escaped(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _timestamp(verdict: SuiteVerdict) -> float:
    date = dt.datetime.fromisoformat(verdict.history.jobs[-1].date)
    return (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp()


def _slow(suites: Sequence[SuiteVerdict]) -> list[Sample]:
    return [
        ({"suite": verdict.history.suite, "kind": slow.kind, "name": slow.name}, slow.ratio)
        for verdict in suites
        for slow in verdict.findings.suspects
        if slow.ended is None
    ]


def _times(suites: Sequence[SuiteVerdict]) -> list[Sample]:
    samples: dict[tuple[str, ...], Sample] = {}
    for verdict in suites:
        history = verdict.history
        for key, seconds in zip(history.keys, history.seconds, strict=True):
            if np.isfinite(seconds[-1]):
                labels = {"suite": history.suite, "case": key.case, "measure": key.measure}
                labels |= {"environment": key.environment_key}
                samples.setdefault(tuple(labels.values()), (labels, float(seconds[-1])))
    return list(samples.values())
