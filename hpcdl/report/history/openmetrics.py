"""History as OpenMetrics text, for the text-file collector of Prometheus' node exporter.

Only gauges: the collector reads Prometheus' older text format, which has them alike. See
https://prometheus.io/docs/specs/om/open_metrics_spec/ for the rules of names and escapes.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.report.formats.cells import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcdl.analysis.over_time.verdict import SuiteVerdict


Sample = tuple[dict[str, str], float]


def render(found: Sequence[SuiteVerdict], exit_code: int) -> str:
    """Return the text."""
    lines = [*_family("hpcdl_history_exit_code", "Exit code of hpcdl history.", [({}, exit_code)])]
    families = (
        ("runs", "Runs in the archive.", lambda one: float(len(one.history.jobs))),
        ("newest_run_timestamp_seconds", "Start of the newest run.", _timestamp),
        ("judged_measures", "Measures with enough runs.", lambda one: float(one.findings.judged)),
        ("missing_cases", "Cases that the newest run lacks.", lambda one: float(len(one.missing))),
        (
            "open_regressions",
            "Regressions neither repaired nor accepted.",
            lambda one: float(len(one.open_events)),
        ),
        ("accepted_regressions", "Regressions that are accepted.", lambda one: float(len(one.accepted_events))),
        ("below_floor", "Collectives below the floor.", lambda one: float(len(one.open_below_floor))),
    )
    for name, text, value in families:
        samples = [({"suite": one.history.suite}, value(one)) for one in found]
        lines += _family(f"hpcdl_history_{name}", text, samples)
    lines += _family("hpcdl_history_slow_probability", "Hosts and links that are slow now.", _slow(found))
    lines += _family("hpcdl_case_time_seconds", "Newest time of each measure.", _times(found))
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(name: str, text: str, samples: Sequence[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(one)}"' for key, one in labels.items())
        yield f"{name}{{{inside}}} {value:.9g}" if inside else f"{name} {value:.9g}"


def _escaped(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _timestamp(one: SuiteVerdict) -> float:
    date = dt.datetime.fromisoformat(one.history.jobs[-1].date)
    return (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp()


def _slow(found: Sequence[SuiteVerdict]) -> list[Sample]:
    return [
        ({"suite": one.history.suite, "kind": slow.kind, "name": slow.name}, slow.probability)
        for one in found
        for slow in one.findings.suspects
        if slow.ended is None
    ]


def _times(found: Sequence[SuiteVerdict]) -> list[Sample]:
    samples: dict[tuple[str, ...], Sample] = {}
    for one in found:
        history = one.history
        for key, seconds in zip(history.keys, history.seconds, strict=True):
            if np.isfinite(seconds[-1]):
                labels = {"suite": history.suite, "case": key.case, "measure": key.measure}
                labels |= {"environment": key.environment_key}
                samples.setdefault(tuple(labels.values()), (labels, float(seconds[-1])))
    return list(samples.values())
