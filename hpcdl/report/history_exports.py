"""A history for JSON, for JUnit XML and for OpenMetrics."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hpcdl.analysis.over_time.calibration import Calibration
from hpcdl.analysis.over_time.change_points import AFTER, BEFORE
from hpcdl.analysis.over_time.series import History
from hpcdl.analysis.over_time.suspects import Suspect
from hpcdl.analysis.over_time.verdict import Event, SuiteVerdict
from hpcdl.report.formats.exports import Gauge, TestCase, TestSuite
from hpcdl.report.history import group, link_counters, of_event, verdicts, worst
from hpcdl.report.link_counters import records


def record(verdict: SuiteVerdict, calibration: Calibration | None) -> dict[str, object]:
    """Return the document of one suite for JSON; null for unknown values."""
    history, findings = verdict.history, verdict.findings
    said = verdicts(verdict)
    return {
        "suite": history.suite,
        "verdict": worst(said),
        "verdicts": [one.record() for one in said],
        "runs": [
            {
                "run": job.path,
                "date": job.began.isoformat(),
                "environment_keys": sorted(job.keys),
                "hosts": job.hosts,
            }
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
        "link_counters": records(link_counters(history, len(history.jobs) - 1)),
        "measures": [_measure(history, series) for series in range(len(history.keys))],
        "calibration": calibration
        and {
            "rounds": calibration.rounds,
            "false_regressions_per_100_runs": calibration.regressed,
            "false_improvements_per_100_runs": calibration.improved,
        },
    }


def _event(verdict: SuiteVerdict, event: Event) -> dict[str, object]:
    history = verdict.history
    return {
        "verdict": event.verdict,
        "open": event in verdict.open_events,
        "accepted": event in verdict.accepted_events,
        **_runs(history, event.first, event.found),
        "ratio": event.ratio,
        "new_environment": event.environment,
        "link_counters": records(link_counters(history, event.first)),
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


def _series(history: History, series: int) -> dict[str, object]:
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
        "first_date": history.jobs[first].began.isoformat(),
        "found_by_run": history.jobs[number].path,
        "found_date": history.jobs[number].began.isoformat(),
    }


def _named(history: History, suspect: Suspect) -> dict[str, object]:
    return {
        "name": suspect.name,
        "kind": suspect.kind,
        "source": suspect.source,
        **_runs(history, suspect.first, suspect.found),
        "cleared_by_run": None if suspect.ended is None else history.jobs[suspect.ended].path,
        "ratio": suspect.ratio,
        "runs": suspect.runs,
    }


def _measure(history: History, series: int) -> dict[str, object]:
    seconds = history.seconds[series]
    known = np.isfinite(seconds)
    return {
        **_series(history, series),
        "runs": int(known.sum()),
        "seconds": [float(value) if there else None for value, there in zip(seconds, known, strict=True)],
    }


def tests(verdict: SuiteVerdict) -> TestSuite:
    """Return a test case per kind of case, ranks and measure of the newest run, and one for all else.

    A group fails by the verdicts on its changes; one with too few runs is skipped.
    """
    history, said, known = verdict.history, verdicts(verdict), np.isfinite(verdict.history.seconds)
    groups: dict[str, list[int]] = {}
    for row in np.flatnonzero(known[:, -1]).tolist():
        groups.setdefault(group(history, row), []).append(row)
    few = [one for one in said if one.word in {"short", "too few runs"}]
    cases = []
    for name, rows in groups.items():
        case = TestCase.of(history.suite, name, [one for one in said if name in one.tests])
        is_young = (known[rows].sum(axis=1) < BEFORE + AFTER).all()
        cases.append(case._replace(skipped=few) if is_young else case)
    others = [one for one in said if not one.tests & groups.keys()]
    cases.append(TestCase.of(history.suite, "hosts, links and cases", others))
    events = [of_event(verdict, event).sentence for event in verdict.findings.events]
    return TestSuite(f"hpcdl history: {history.suite}", cases, events)


def gauges(suites: Sequence[SuiteVerdict], exit_code: int) -> list[Gauge]:
    """Return the metrics of all suites."""
    words = [Counter(one.word for one in verdicts(suite)) for suite in suites]
    newest = [int(suite.history.jobs[-1].began.timestamp()) for suite in suites]
    families = {
        "runs": ("Runs in the archive.", [len(suite.history.jobs) for suite in suites]),
        "newest_run_timestamp_seconds": (
            "Start of the newest run.",
            newest,
        ),
        "judged_measures": ("Measures with enough runs.", [suite.findings.judged for suite in suites]),
        "missing_cases": ("Cases that the newest run lacks.", [word["missing"] for word in words]),
        "open_regressions": (
            "Neither repaired nor accepted.",
            [word["regressed"] + word["two states"] for word in words],
        ),
        "accepted_regressions": ("Accepted regressions.", [word["accepted"] for word in words]),
    }
    names = [{"suite": suite.history.suite} for suite in suites]
    slow = [
        ({"suite": suite.history.suite, "kind": slow.kind, "name": slow.name}, slow.ratio)
        for suite in suites
        for slow in suite.findings.suspects
        if slow.ended is None
    ]
    times: dict[tuple[str, ...], tuple[dict[str, str], float]] = {}
    for suite in suites:
        for key, seconds in zip(suite.history.keys, suite.history.seconds, strict=True):
            labels = {"suite": suite.history.suite, "case": key.case, "measure": key.measure}
            labels |= {"environment": key.environment_key}
            if np.isfinite(seconds[-1]):  # settings are no label: of two cases of a name the first counts
                times.setdefault(tuple(labels.values()), (labels, float(seconds[-1])))
    return [
        Gauge("hpcdl_history_exit_code", "Exit code of hpcdl history.", [({}, exit_code)]),
        *(
            Gauge(f"hpcdl_history_{name}", text, list(zip(names, values, strict=True)))
            for name, (text, values) in families.items()
        ),
        Gauge("hpcdl_history_slow_ratio", "Hosts and links that are slow now.", slow),
        Gauge("hpcdl_case_time_seconds", "Newest time of each measure.", list(times.values())),
    ]
