"""``hpcdl history``: since when is it slower, in an archive of runs?"""

import argparse
import datetime as dt
import sys
from pathlib import Path
from time import monotonic
from typing import Final

from hpcdl.commands.parts.options import Arguments, Command, check_page, duration, path, write_output, write_page
from hpcdl.exit_codes import UsageError, refused


def arguments(parser: Arguments) -> None:
    effect = "folder of run folders and logs, at any depth, or a file of series: name,date,value"
    parser.option("folder DIR|FILE.csv", effect, type=path)
    stale = "exit code 3 if the newest run began longer ago, in hours or days (3d)"
    parser.option("--stale 36h", stale, type=duration)
    parser.option("--accept FILE", "TOML file of accepted regressions, slow hosts and missing cases", type=path)
    switches = "each line names a switch and its hosts (default: hosts whose names differ in the last number)"
    parser.option("--switches FILE", switches, type=path)
    parser.option("--calibrate", "print the rate of false alarms on this archive's own noise")
    parser.option("-o FILE", "write a page with figures too: .html", dest="output", type=path)
    parser.option("--json", "one JSON document")
    parser.option("--metrics FILE", "write OpenMetrics text too, for Prometheus", type=path)
    parser.option("--junit FILE", "write JUnit XML too", type=path)
    parser.log_option()


def execute(options: argparse.Namespace) -> int:
    from hpcdl.analysis.over_time.archive import read_archive
    from hpcdl.analysis.over_time.series import histories
    from hpcdl.analysis.over_time.verdict import SuiteVerdict
    from hpcdl.commands.parts.options import read_accepted
    from hpcdl.report import history, history_exports
    from hpcdl.report.formats.verdicts import Verdict, exit_code
    from hpcdl.report.formats.writers import coloured, json_text, junit, openmetrics, plain

    check_page(options.output, ".html")
    now, shown = dt.datetime.now(dt.UTC), monotonic()

    def show(done: int, runs: int) -> None:
        nonlocal shown
        if monotonic() >= shown + 10:
            print(f"hpcdl: {done} of {runs} runs read; each is kept as run.series.json", file=sys.stderr)
            shown = monotonic()

    accepted = [] if options.accept is None else read_accepted(options.accept)
    switches = {} if options.switches is None else _switches(options.switches)
    try:
        runs, skipped, unread = read_archive(options.folder, now, show, options.log)
    except OSError as error:
        raise UsageError(f"{options.folder}: {error.strerror}") from None
    for line in [*skipped, *unread]:
        print(f"hpcdl: warning: {line}; skipped", file=sys.stderr)
    suites = []
    for suite in histories(runs):
        age = now - suite.jobs[-1].began
        stale = age if options.stale is not None and age > options.stale else None
        suites.append(SuiteVerdict(suite, accepted, switches, stale, now.date(), options.calibrate))
    other = [Verdict(topic="history", word="not read", facts={"folder": line}) for line in unread]
    if not suites:
        other.append(Verdict(topic="history", word="no runs", facts={"folder": str(options.folder)}))
    code = exit_code([*other, *(verdict for suite in suites for verdict in history.verdicts(suite))])
    if options.output is not None:
        write_page(options.output, history.pages(suites, other, whole=True))
    if options.junit is not None:
        write_output("--junit", options.junit, junit(list(map(history_exports.tests, suites)), now))
    if options.metrics is not None:
        write_output("--metrics", options.metrics, openmetrics(history_exports.gauges(suites, code)))
    if options.json:
        records = list(map(history_exports.record, suites))
        print(json_text({"exit_code": code, "suites": records, "skipped": [*skipped, *unread]}), end="")
    else:
        print(coloured(plain(history.pages(suites, other))), end="")
    return code


def _switches(file: Path) -> dict[str, str]:
    """Return the switch of each host in a file. Raises UsageError."""
    from hpcdl.trace.files import read_text

    with refused("--switches "):
        lines = [line for line in read_text(file).splitlines() if line.strip() and not line.startswith("#")]
    return {host: switch for switch, *hosts in map(str.split, lines) for host in hosts}


COMMAND: Final = Command(
    24,
    "since when is it slower, and where?",
    "Find changes in an archive of runs: the first slow run, the cases, by how much, and the likely hosts or "
    "links. Exit code 1: a regression or a slow host is open, neither repaired nor accepted, or the newest run "
    "lacks a case; 3: it cannot be judged yet, a folder cannot be read, or the newest run is older than --stale; "
    "else 0.",
    "hpcdl history runs -o history.html",
)
