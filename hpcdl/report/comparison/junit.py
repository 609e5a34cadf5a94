"""Result of a comparison as JUnit XML, which continuous-integration systems show and compare over time.

One test case per case and measure; one that regressed, failed or is missing is a failure, an inconclusive one is
skipped, all others pass. Attributes and order of the elements fit the schema of Ant's JUnit task, which is the
strictest of those in use (https://github.com/windyroad/JUnit-Schema).
"""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from hpcdl.analysis.over_time.change import BAD, INCONCLUSIVE
from hpcdl.report.formats.cells import visible

if TYPE_CHECKING:
    import datetime as dt

    from hpcdl.analysis.over_time.change import Change
    from hpcdl.analysis.over_time.regressions import Comparison


def render(found: Comparison, text: str, now: dt.datetime) -> str:
    """Return the XML; ``text`` is the page on a terminal, ``now`` the time in UTC."""
    suites = ET.Element("testsuites")
    suite = ET.SubElement(
        suites,
        "testsuite",
        name="hpcdl compare",
        package="hpcdl",
        id="0",
        timestamp=now.strftime("%Y-%m-%dT%H:%M:%S"),
        hostname=visible(socket.gethostname()),
        tests=str(len(found.changes)),
        failures=str(found.count(*BAD)),
        errors="0",
        skipped=str(found.count(INCONCLUSIVE)),
        time="0",
    )
    ET.SubElement(suite, "properties")
    for one in found.changes:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=visible(one.suite or "hpcdl"),
            name=visible(f"{one.case} {one.measure}"),
            time="0",
        )
        message = visible(_message(one))
        if one.verdict in BAD:
            ET.SubElement(case, "failure", type=one.verdict, message=message).text = message
        elif one.verdict == INCONCLUSIVE:
            ET.SubElement(case, "skipped", message=message)
    ET.SubElement(suite, "system-out").text = "\n".join(map(visible, text.split("\n")))
    ET.SubElement(suite, "system-err")
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _message(one: Change) -> str:
    numbers = ""
    if math.isfinite(one.ratio):
        numbers = f"{one.baseline:.6g} s became {one.candidate:.6g} s, a ratio of {one.ratio:.4f}"
    if math.isfinite(one.p):
        numbers += f" ({one.low:.4f} to {one.high:.4f}), adjusted p = {one.p:.2g}"
    return "; ".join(filter(None, [one.verdict, numbers, one.reason]))
