"""A history for JSON, for JUnit XML and for OpenMetrics."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.over_time.change_points import AFTER, BEFORE
from hpcdl.analysis.over_time.series import History, median_slowness
from hpcdl.analysis.over_time.suspects import Suspect
from hpcdl.analysis.over_time.verdict import Event, SuiteVerdict
from hpcdl.analysis.run.record import group_by_key
from hpcdl.exit_codes import FAILED, OK
from hpcdl.report.formats.writers import Gauge, TestCase, TestSuite
from hpcdl.report.history import group, link_counters, of_event, verdicts, worst
from hpcdl.report.run.link_counters import records

CALIBRATION: Final = ("rounds", "false_regressions_per_100_runs", "false_improvements_per_100_runs")
RATIO: Final = ("ratio", "ratio_low", "ratio_high")


def record(verdict: SuiteVerdict) -> dict[str, object]:
    """Return the document of one suite for JSON; null for unknown values."""
    history, calibration, said = verdict.history, verdict.calibration, verdicts(verdict)
    taken = [suspect for event in verdict.open_events for suspect in event.suspects]
    return {
        "suite": history.suite,
        "verdict": worst(said),
        "verdicts": [verdict.record() for verdict in said],
        "runs": [
            {
                "run": job.path,
                "date": job.began.isoformat(),
                "environment_keys": sorted(job.keys),
                "hosts": job.hosts,
            }
            for job in history.jobs
        ],
        "judged": verdict.judged,
        "too_few_runs": len(verdict.waiting("short")),
        "age_hours": None if verdict.age is None else verdict.age.total_seconds() / 3600,
        "events": [_event(verdict, event) for event in verdict.events],
        "slow": [
            {**_suspect(history, suspect), "open": suspect in [*verdict.open_suspects, *taken]}
            for suspect in verdict.suspects
        ],
        "missing": [{"case": case, "reason": reason} for case, reason in verdict.missing],
        "environment_changes": [history.jobs[change].path for change in history.environment_changes()],
        "link_counters": records(link_counters(history, len(history.jobs) - 1)),
        "measures": [
            {**_series(history, row), "runs": int(np.isfinite(seconds).sum()), "seconds": seconds.tolist()}
            for row, seconds in enumerate(history.seconds)
        ],
        "calibration": calibration and dict(zip(CALIBRATION, calibration, strict=True)),
    }


def _event(verdict: SuiteVerdict, event: Event) -> dict[str, object]:
    history = verdict.history
    return {
        "verdict": event.verdict,
        "open": event in verdict.open_events,
        "accepted": event in verdict.accepted_events,
        **_runs(history, event.first, event.found),
        "ratio": of_event(verdict, event).size.value,
        "new_environment": event.environment,
        "link_counters": records(link_counters(history, event.first)),
        "likely": [_suspect(history, suspect) for suspect in event.suspects],
        "changes": [
            {
                **_series(history, change.series),
                **_runs(history, change.first, change.found),
                **dict(zip(RATIO, change.ratio, strict=True)),
                "p": change.p,
                "open": change.open,
            }
            for change in event.changes
        ],
    }


def _series(history: History, series: int) -> dict[str, object]:
    key, case = history.keys[series], history.case(series)
    names = {"case": key.case, "measure": key.measure, "environment_key": key.environment_key}
    return {**names, "kind": case.kind, "ranks": case.ranks, "message_bytes": case.message_bytes}


def _runs(history: History, *numbers: int) -> dict[str, str]:
    """Return folder and date of the first run and of the run that found it."""
    first, found = ((history.jobs[number].path, history.jobs[number].began.isoformat()) for number in numbers)
    return dict(zip(("first_run", "first_date", "found_by_run", "found_date"), (*first, *found), strict=True))


def _suspect(history: History, suspect: Suspect) -> dict[str, object]:
    return {
        "name": suspect.name,
        "kind": suspect.kind,
        "source": suspect.source,
        **_runs(history, suspect.first, suspect.found),
        "cleared_by_run": None if suspect.ended is None else history.jobs[suspect.ended].path,
        "ratio": suspect.ratio,
        "runs": suspect.runs,
    }


def tests(verdict: SuiteVerdict) -> TestSuite:
    """Return a test case per kind of case, ranks and measure of the newest run, and one for all else.

    A group fails by the verdicts on its changes; one with too few runs is skipped.
    """
    history, said, measured = verdict.history, verdicts(verdict), np.isfinite(verdict.history.seconds)
    groups = group_by_key((group(history, row), row) for row in np.flatnonzero(measured[:, -1]).tolist())
    few = [verdict for verdict in said if verdict.word in {"short", "too few runs"}]
    cases = []
    for name, rows in groups.items():
        cases.append(TestCase.of(history.suite, name, [verdict for verdict in said if name in verdict.tests]))
        if (measured[rows].sum(axis=1) < BEFORE + AFTER).all():
            cases[-1] = cases[-1]._replace(skipped=few)
    others = [verdict for verdict in said if not verdict.tests & groups.keys()]
    cases.append(TestCase.of(history.suite, "hosts, links and cases", others))
    events = [of_event(verdict, event).sentence for event in verdict.events]
    return TestSuite(f"hpcdl history: {history.suite}", cases, events)


def gauges(suites: Sequence[SuiteVerdict], exit_code: int) -> list[Gauge]:
    """Return the metrics of all suites."""
    newest = [int(suite.history.jobs[-1].began.timestamp()) for suite in suites]
    said = [[(verdict.word, verdict.row.code) for verdict in verdicts(suite)] for suite in suites]
    missing = [told.count(("missing", FAILED)) for told in said]
    red = [sum(code == FAILED for word, code in told if word != "missing") for told in said]
    values = [
        ("runs", "Runs in the archive.", [len(suite.history.jobs) for suite in suites]),
        ("newest_run_timestamp_seconds", "Start of the newest run.", newest),
        ("judged_measures", "Measures with enough runs.", [suite.judged for suite in suites]),
        ("missing_cases", "Cases that the newest run lacks.", missing),
        ("open_regressions", "Regressions and slow hosts, neither repaired nor accepted.", red),
        ("accepted_regressions", "Accepted regressions.", [told.count(("accepted", OK)) for told in said]),
    ]
    names = [{"suite": suite.history.suite} for suite in suites]
    slow = [
        (name | {"kind": suspect.kind, "name": suspect.name}, suspect.ratio)
        for name, suite in zip(names, suites, strict=True)
        for suspect in suite.suspects
        if suspect.ended is None
    ]
    times: dict[tuple[str, ...], tuple[dict[str, str], float]] = {}
    for name, suite in zip(names, suites, strict=True):
        for key, seconds in zip(suite.history.keys, suite.history.seconds, strict=True):
            labels = {**name, "case": key.case, "measure": key.measure, "environment": key.environment_key}
            if np.isfinite(seconds[-1]):  # settings are no label: of two cases of a name the first counts
                times.setdefault(tuple(labels.values()), (labels, float(seconds[-1])))
    return [
        Gauge("hpcdl_history_exit_code", "Exit code of hpcdl history.", [({}, exit_code)]),
        *(
            Gauge(f"hpcdl_history_{name}", text, list(zip(names, samples, strict=True)))
            for name, text, samples in values
        ),
        Gauge("hpcdl_history_slow_ratio", "Hosts and links that are slow now.", slow),
        Gauge("hpcdl_case_time_seconds", "Newest time of each measure.", list(times.values())),
        *(
            Gauge(f"hpcdl_{kind}_slowness_ratio", text, _ratios(suites, kind, labels))
            for kind, labels, text in RATIOS
        ),
    ]


MAX_LINKS: Final = 500
"""Links of a suite that have a metric, the slowest: a thousand hosts have half a million."""
RATIOS: Final = (
    ("host", ("host",), "Time of a host's links / of the usual host's, in the newest run."),
    ("node", ("host",), "Time of a host's own work / of the usual host's, in the newest run."),
    ("link", ("host_a", "host_b"), f"Time of a link / of the median link's, the slowest {MAX_LINKS}."),
)
"""Metric, labels and meaning of the ratios of the newest run."""


def _ratios(
    suites: Sequence[SuiteVerdict], kind: str, labels: Sequence[str]
) -> list[tuple[dict[str, str], float]]:
    """Return the samples of one of :data:`RATIOS`: the median over the cases of the newest run."""
    samples = []
    for suite in suites:
        medians = median_slowness(suite.history.jobs[-1].not_failed, kind)
        for name in sorted(medians, key=lambda name: -medians[name])[:MAX_LINKS]:
            named = dict(zip(labels, name.split(" - "), strict=True))
            samples.append(({"suite": suite.history.suite, **named}, medians[name]))
    return samples
