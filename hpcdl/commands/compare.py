"""``hpcdl compare``: regressions between two sets of runs."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import Arguments, Command, check_page, path, share, write_output, write_page
from hpcdl.exit_codes import UsageError, refused

if TYPE_CHECKING:
    from hpcdl.analysis.over_time.series import RunSeries
    from hpcdl.trace.log import Facts


def arguments(parser: Arguments) -> None:
    run = "a run folder, a folder of --launches, a run.h5, records, .json.xz, or a log; each run is one launch"
    parser.option("baseline BASELINE", run, nargs="+", type=path)
    parser.option("--with CANDIDATE", "the same", nargs="+", type=path, required=True, dest="candidate")
    parser.option("--min-effect SHARE", "smallest change that counts (default: 3%%)", type=share, default=0.03)
    effect = "if each side is one job: standard deviation between jobs of the same software (default: 2%%)"
    parser.option("--between-jobs SHARE", effect, type=share, default=0.02)
    parser.option("--accept FILE", "TOML file of accepted regressions", type=path)
    parser.option("-o FILE", "write a page too: .html or .md", dest="output", type=path)
    parser.option("--json", "one JSON document")
    parser.option("--junit FILE", "write JUnit XML too", type=path)
    parser.log_option()


def execute(options: argparse.Namespace) -> int:
    from hpcdl.analysis.over_time.regressions import compare
    from hpcdl.commands.parts.options import read_accepted
    from hpcdl.report import comparison as pages
    from hpcdl.report.formats.writers import coloured, columns, json_text, junit, plain

    check_page(options.output, ".html", ".md")
    accepted = [] if options.accept is None else read_accepted(options.accept)
    (baseline, candidate), copies = _series(options.baseline, options.candidate, facts=options.log)
    now = dt.datetime.now(dt.UTC)
    with refused():
        comparison = compare(baseline, candidate, options.min_effect, accepted, now.date(), options.between_jobs)
    page = pages.page(comparison, copies)
    text = plain([pages.page(comparison, copies, pages.name_width(columns()))])
    if options.output is not None:
        write_page(options.output, [page])
    if options.junit is not None:
        write_output("--junit", options.junit, junit(pages.tests(comparison, text), now))
    record = pages.record(comparison, copies)
    print(json_text(record) if options.json else coloured(text), end="")
    return page.verdicts[0].row.code


def _series(*given: Sequence[Path], facts: Facts) -> tuple[list[list[RunSeries]], list[str]]:
    """Read both sides; copies of a run count once, and have one line each.

    Raises TraceError for a run that cannot be read, UsageError for one that is on both sides.
    """
    from hpcdl.analysis.over_time.archive import read_launches, without_copies
    from hpcdl.analysis.run.pooling import Copies, runs_in

    sides: list[list[RunSeries]] = []
    copies = [Copies() for _ in given]
    for paths, of_side in zip(given, copies, strict=True):
        runs = [run for path in paths for run in runs_in(path)]
        sides.append(without_copies([launch for run in runs for launch in read_launches(run, facts)], of_side))
    of_baseline = {identity: run.path for run in sides[0] for identity in run.identities}
    for run in sides[1]:
        if original := next((of_baseline[name] for name in run.identities if name in of_baseline), None):
            raise UsageError(f"{run.path}: the run is given more than once, also as {original} of the baseline")
    return sides, [f"{line}." for side in copies for line in side.lines]


COMMAND: Final = Command(
    22,
    "find regressions between runs",
    "Compare the runs of a candidate with those of a baseline. Launches are the unit. Exit code 1: a measure "
    "regressed beyond --min-effect, or a case failed or is missing; 3: half of the measures or more are "
    "inconclusive, or the effect of one may exceed twice --min-effect; else 0.",
    "hpcdl compare runs/baseline --with runs/tonight -o page.html",
)
