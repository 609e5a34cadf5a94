"""History as JUnit XML: one test case per suite, kind of case, number of ranks and measure."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np

from hpcdl.analysis.over_time.change_points import BEFORE
from hpcdl.report.formats.cells import visible
from hpcdl.report.history.history import below_floor, label, sentence, signed

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from hpcdl.analysis.over_time.verdict import SuiteVerdict


Groups = dict[str, list[int]]


def render(found: Sequence[SuiteVerdict], now: dt.datetime) -> str:
    """Return the XML; a group with an open change fails, one with too few runs is skipped. ``now``: in UTC."""
    suites = ET.Element("testsuites")
    for number, one in enumerate(found):
        suites.append(_suite(one, number, now))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _suite(found: SuiteVerdict, number: int, now: dt.datetime) -> ET.Element:
    groups = _groups(found)
    failures = {group: _failures(found, rows) for group, rows in groups.items()}
    others = [row for row, key in enumerate(found.history.keys) if key[:3] not in _newest(found)]
    whole = [f"{case}: missing: {reason}" for case, reason in found.missing]
    whole += _failures(found, others)
    whole += [f"slow: {one.kind} {one.name}" for one in found.open_suspects]
    whole += [below_floor(found.history, one) for one in found.open_below_floor]
    failures["hosts, links and cases"] = whole
    short = [group for group, rows in groups.items() if not failures[group] and not _enough(found, rows)]
    suite = ET.Element(
        "testsuite",
        name=visible(f"hpcdl history: {found.history.suite}"),
        package="hpcdl",
        id=str(number),
        timestamp=now.strftime("%Y-%m-%dT%H:%M:%S"),
        hostname=visible(socket.gethostname()),
        tests=str(len(failures)),
        failures=str(sum(map(bool, failures.values()))),
        errors="0",
        skipped=str(len(short)),
        time="0",
    )
    ET.SubElement(suite, "properties")
    for group, lines in failures.items():
        case = ET.SubElement(
            suite, "testcase", classname=visible(found.history.suite or "hpcdl"), name=visible(group), time="0"
        )
        if lines:
            message = visible(lines[0])
            ET.SubElement(case, "failure", type="regressed", message=message).text = "\n".join(map(visible, lines))
        elif group in short:
            ET.SubElement(case, "skipped", message=f"fewer than {BEFORE} runs")
    events = [visible(sentence(found.history, one)) for one in found.findings.events]
    ET.SubElement(suite, "system-out").text = "\n".join(events)
    ET.SubElement(suite, "system-err")
    return suite


def _newest(found: SuiteVerdict) -> set[tuple[str, ...]]:
    """Return the keys, without the environment, of the series of the newest run."""
    known = np.isfinite(found.history.seconds[:, -1])
    return {key[:3] for key, there in zip(found.history.keys, known, strict=True) if there}


def _groups(found: SuiteVerdict) -> Groups:
    """Return the series of the newest run by group."""
    history = found.history
    groups: Groups = {}
    for row in np.flatnonzero(np.isfinite(history.seconds[:, -1])):
        case = history.case(int(row))
        name = f"{case.kind}, {case.ranks} ranks, {history.keys[int(row)].measure}"
        groups.setdefault(name, []).append(int(row))
    return groups


def _failures(found: SuiteVerdict, rows: Sequence[int]) -> list[str]:
    history = found.history
    alike = {history.keys[row][:3] for row in rows}
    return [
        f"{label(history, change.series)}: {signed(change.ratio.value)} since {history.jobs[change.first].path}"
        for event in found.open_events
        for change in event.open
        if history.keys[change.series][:3] in alike
    ]


def _enough(found: SuiteVerdict, rows: Sequence[int]) -> bool:
    return bool((np.isfinite(found.history.seconds[list(rows)]).sum(axis=1) >= BEFORE).any())
