"""Formats for other programs: CSV, JSON, JUnit XML and OpenMetrics."""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

from hpcdl.exit_codes import FAILED, INCONCLUSIVE, visible
from hpcdl.report.formats.cells import NONE
from hpcdl.report.formats.tables import Table
from hpcdl.report.formats.verdicts import Verdict

FORMULA: Final = ("=", "+", "-", "@")
"""First characters of a formula."""


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return one line per row in full precision; an unknown value is an empty cell."""
    import pandas as pd  # late: the other formats do not need it

    cells = [{_text(name): _cell(value) for name, value in row.items()} for row in rows]
    return pd.DataFrame(cells, dtype=object).to_csv(index=False, lineterminator="\n")


def table(shown: Table) -> str:
    """Return the cells of a table as they are shown; an unknown value is an empty cell."""
    import pandas as pd  # late, as above

    header, *rows = ([_text(cell) if cell != NONE else "" for cell in row] for row in (shown.header, *shown.rows))
    return pd.DataFrame(rows, columns=header, dtype=object).to_csv(index=False, lineterminator="\n")


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return json.dumps(value)
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    """Return text that no spreadsheet takes for a formula: one that could be begins with an apostrophe."""
    text = visible(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def json_text(document: Mapping[str, object]) -> str:
    """Return the document with the number of its schema, as ASCII text; a number that is not finite is null."""
    text = json.dumps({"schema": 1, **document})
    return json.dumps(json.loads(text, parse_constant=lambda _name: None), indent=1) + "\n"


class TestCase(NamedTuple):
    """A test case; it passes without ``failures`` and ``skipped``."""

    classname: str
    name: str
    failures: Sequence[Verdict] = ()
    skipped: Sequence[Verdict] = ()

    @classmethod
    def of(cls, classname: str, name: str, verdicts: Sequence[Verdict]) -> TestCase:
        """Return a test case that fails, or is skipped, by the exit codes of its verdicts."""
        failures, skipped = (
            [verdict for verdict in verdicts if verdict.row.code == code] for code in (FAILED, INCONCLUSIVE)
        )
        return cls(classname, name, failures, skipped)


class TestSuite(NamedTuple):
    """Test cases that belong together."""

    name: str
    cases: Sequence[TestCase]
    output: Sequence[str]


def junit(suites: Sequence[TestSuite], now: dt.datetime) -> str:
    """Return JUnit XML, which continuous-integration systems show; ``now`` is the time in UTC.

    Attributes and order of the elements fit the schema of Ant's JUnit task, which is the strictest of those in
    use (https://github.com/windyroad/JUnit-Schema).
    """
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
            failures=str(sum(bool(case.failures) for case in suite.cases)),
            errors="0",
            skipped=str(sum(bool(case.skipped) and not case.failures for case in suite.cases)),
            time="0",
        )
        ET.SubElement(element, "properties")
        for case in suite.cases:
            names = {"classname": visible(case.classname or "hpcdl"), "name": visible(case.name), "time": "0"}
            test = ET.SubElement(element, "testcase", names)
            lines = [visible(verdict.sentence) for verdict in case.failures or case.skipped]
            if case.failures:
                failure = ET.SubElement(test, "failure", type=case.failures[0].word, message=lines[0])
                failure.text = "\n".join(lines)
            elif case.skipped:
                ET.SubElement(test, "skipped", message=lines[0])
        ET.SubElement(element, "system-out").text = "\n".join(map(visible, suite.output))
        ET.SubElement(element, "system-err")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


class Gauge(NamedTuple):
    """A metric that may rise and fall, by its labels."""

    name: str
    text: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def openmetrics(gauges: Sequence[Gauge]) -> str:
    """Return OpenMetrics text, which Prometheus reads.

    Only gauges: the text-file collector of Prometheus' node exporter reads an older format, which has them alike.
    Rules of names and escapes: https://prometheus.io/docs/specs/om/open_metrics_spec/
    """
    lines = []
    for name, text, samples in gauges:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for labels, value in samples:
            inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
            lines.append(f"{name}{{{inside}}} {value:.9g}" if inside else f"{name} {value:.9g}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _escaped(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
