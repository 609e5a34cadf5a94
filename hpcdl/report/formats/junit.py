"""JUnit XML, which continuous-integration systems show and compare over time.

Attributes and order of the elements fit the schema of Ant's JUnit task, which is the strictest of those in use
(https://github.com/windyroad/JUnit-Schema).
"""

from __future__ import annotations

import datetime as dt
import socket
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from hpcdl.report.formats.cells import visible


class TestCase(NamedTuple):
    """A test case; it passes without ``failure`` and ``skipped``."""

    classname: str
    name: str
    failure: str = ""
    """Type of the failure."""
    lines: Sequence[str] = ()
    """Of the failure; the first is its message."""
    skipped: str = ""
    """The reason."""


class TestSuite(NamedTuple):
    """Test cases that belong together."""

    name: str
    cases: Sequence[TestCase]
    output: Sequence[str]


def written(suites: Sequence[TestSuite], now: dt.datetime) -> str:
    """Return the XML; ``now`` is the time in UTC."""
    root = ET.Element("testsuites")
    for number, suite in enumerate(suites):
        element = ET.SubElement(
            root,
            "testsuite",
            name=visible(suite.name),
            package="hpcdl",
            id=str(number),
            timestamp=now.strftime("%Y-%m-%dT%H:%M:%S"),
            hostname=visible(socket.gethostname()),
            tests=str(len(suite.cases)),
            failures=str(sum(bool(case.failure) for case in suite.cases)),
            errors="0",
            skipped=str(sum(bool(case.skipped) and not case.failure for case in suite.cases)),
            time="0",
        )
        ET.SubElement(element, "properties")
        for case in suite.cases:
            _add(element, case)
        ET.SubElement(element, "system-out").text = "\n".join(map(visible, suite.output))
        ET.SubElement(element, "system-err")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add(suite: ET.Element, case: TestCase) -> None:
    names = {"classname": visible(case.classname or "hpcdl"), "name": visible(case.name), "time": "0"}
    element = ET.SubElement(suite, "testcase", names)
    if case.failure:
        lines = [*map(visible, case.lines)]
        ET.SubElement(element, "failure", type=case.failure, message=lines[0]).text = "\n".join(lines)
    elif case.skipped:
        ET.SubElement(element, "skipped", message=visible(case.skipped))
