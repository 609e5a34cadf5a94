"""``hpcdl history``: since when is it slower, in an archive of runs?"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.command import Command
from hpcdl.commands.parts.output_file import write_output
from hpcdl.commands.parts.parser import path
from hpcdl.exit_codes import FAILED, INCONCLUSIVE, OK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NIGHT: Final = dt.timedelta(hours=12)
"""Runs that began within this time before the newest are of the same night."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments and options."""
    parser.add_argument("folder", type=path, metavar="DIR", help="folder of run folders, at any depth")
    parser.add_argument(
        "--since",
        type=_date,
        metavar="DATE",
        help="findings of runs since then are new, 2026-11-22 or with a time, UTC (default: 12 hours before the "
        "newest run)",
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="print the rate of false alarms on this archive's own noise"
    )
    parser.add_argument(
        "-o", dest="output", type=path, metavar="FILE", help="write a page with figures too: .html"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--metrics", type=path, metavar="FILE", help="write OpenMetrics text too, for Prometheus")
    parser.add_argument("--junit", type=path, metavar="FILE", help="write JUnit XML too")


def _date(text: str) -> str:
    """Return a date as ISO 8601 in UTC. Raises argparse.ArgumentTypeError."""
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no date such as 2026-11-22 or 2026-11-22T01:30") from None
    found = found.astimezone(dt.UTC) if found.tzinfo else found.replace(tzinfo=dt.UTC)
    return found.isoformat(timespec="seconds")


def _last_night(newest: Sequence[str]) -> str:
    """Return the date from which runs belong to the last night, by the newest runs of the suites."""
    if not newest:
        return ""
    return (dt.datetime.fromisoformat(max(newest)) - NIGHT).isoformat(timespec="seconds")


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.analysis.archive import read_archive
    from hpcdl.analysis.calibration import calibrate
    from hpcdl.analysis.history import histories
    from hpcdl.analysis.verdict_over_time import Judged
    from hpcdl.commands.parts.reading_progress import ReadingProgress
    from hpcdl.report import history, history_json, history_junit, openmetrics
    from hpcdl.report.summary import plain
    from hpcdl.suite import UsageError

    if options.output is not None:
        _check_output(options.output)
    try:
        runs, skipped = read_archive(options.folder, ReadingProgress(sys.stderr))
    except OSError as error:
        raise UsageError(f"{options.folder}: {error.strerror}") from None
    for line in skipped:
        print(f"hpcdl: warning: {line}; skipped", file=sys.stderr)
    archive = histories(runs)
    since = options.since or _last_night([one.jobs[-1].date for one in archive])
    found = [Judged(one, since) for one in archive]
    calibrations = {
        one.history.suite: calibrate(
            one.history.logs, [change for event in one.judgement.events for change in event.changes]
        )
        for one in found
        if options.calibrate and len(one.history.keys)
    }
    verdicts = {one.verdict for one in found}
    few = not verdicts or verdicts == {"too few runs"}
    code = FAILED if "regressed" in verdicts else INCONCLUSIVE if few else OK
    if options.output is not None:
        from hpcdl.report.history_page import render  # late: it needs jinja2

        write_output("-o", options.output, render(found, calibrations))
    if options.junit is not None:
        write_output("--junit", options.junit, history_junit.render(found, dt.datetime.now(dt.UTC)))
    if options.metrics is not None:
        write_output("--metrics", options.metrics, openmetrics.render(found, code))
    if options.json:
        print(history_json.render(found, skipped, calibrations, code), end="")
    elif found:
        print(plain([history.page(one, calibrations.get(one.history.suite)) for one in found]), end="")
    else:
        print(f"TOO FEW RUNS: {options.folder} holds none")
    return code


def _check_output(output: Path) -> None:
    """Raise UsageError for a page with another suffix, or without its libraries."""
    from hpcdl.report.pages import missing
    from hpcdl.suite import UsageError

    if output.suffix != ".html":
        raise UsageError(f"-o {output}: must end in .html")
    if missing():
        raise UsageError(f"-o {output}: {missing()}")


COMMAND: Final = Command(
    24,
    "since when is it slower, and where?",
    "Find changes in an archive of runs: the first slow run, the cases, by how much, and the likely host or link. "
    "Exit code 1: a run since --since brought a regression, a drift or a slow host to light, or the newest run "
    "lacks a case; 3: too few runs; else 0.",
    arguments,
    execute,
)
