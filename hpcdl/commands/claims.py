"""``hpcdl claims``: which claims of the sources do runs confirm?"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import Arguments, Command, analysis_of, check_page, name_copies, path, write_page
from hpcdl.exit_codes import INCONCLUSIVE, OK, UsageError

if TYPE_CHECKING:
    from hpcdl.analysis.run.record import Record


def arguments(parser: Arguments) -> None:
    parser.option("runs FOLDER", "has the runs, or their records, each named after its suite", type=path)
    parser.option("-o FILE", "write a page too, with all numbers: .html or .md", dest="output", type=path)
    parser.option("--failed", "only claims that are refuted", action="store_true")
    parser.option("--open", "only claims that no run decides", action="store_true")
    parser.option("--source NAME", "only claims of this source")


def execute(options: argparse.Namespace) -> int:
    from hpcdl.analysis.network.clusters import records as measured_by_others
    from hpcdl.exit_codes import message
    from hpcdl.registry import nearest
    from hpcdl.report.claims import document
    from hpcdl.report.formats.verdicts import exit_code
    from hpcdl.report.formats.writers import coloured, plain
    from hpcdl.report.run.claims import ABSENT, BY_OTHERS, NO, OPEN, SOURCES, WORST_FIRST, sources

    check_page(options.output, ".html", ".md")
    if not options.runs.is_dir():
        raise UsageError(f"{options.runs}: no such folder")
    if options.source not in {None, *SOURCES}:
        raise UsageError(f"no source {options.source!r}{nearest(options.source, SOURCES)}")
    chosen = [*[NO] * options.failed, *[OPEN, ABSENT] * options.open] or WORST_FIRST
    every_source = sources([options.source] if options.source else SOURCES)
    names = {run for one in every_source for claim in one.claims for part in claim.parts for run in part.runs}
    runs, unread = {BY_OTHERS: measured_by_others()}, 0
    for name in sorted(names - {BY_OTHERS}):
        try:
            runs[name] = records_of(options.runs / name)
        except UsageError as error:
            runs[name], unread = [], unread + 1
            print(f"hpcdl: {message(error)}: its claims are not decided", file=sys.stderr)
    make = partial(document, every_source, runs, chosen)
    if options.output is not None:
        write_page(options.output, [make()])
    page = make(short=True)
    print(coloured(plain([page])), end="")
    return exit_code(page.verdicts) or (INCONCLUSIVE if unread else OK)


def records_of(folder: Path) -> list[Record]:
    """Return the records of a run, launches taken together; none without such a run. Raises UsageError."""
    from hpcdl.analysis.run.disturbance import marked
    from hpcdl.analysis.run.launches import launches
    from hpcdl.analysis.run.pooling import read_pooled
    from hpcdl.analysis.run.scaling import records
    from hpcdl.trace.schema import SUFFIXES

    files = (folder, *(folder.with_name(f"{folder.name}{suffix}") for suffix in SUFFIXES))
    for file in filter(Path.exists, files):
        with analysis_of([file]):
            run = read_pooled([file])
            name_copies(run)
            return marked(run, records(launches(run)))
    return []


COMMAND: Final = Command(
    65,
    "check the claims of the sources against runs",
    "Print the claims of papers that are refuted or open by the runs of the shipped suites, then a row for each. "
    "hpcdl/papers/registry.md has the rules. FOLDER has a run, or a folder of launches, for each suite; a claim "
    "without its runs has no verdict. What others measured on four clusters is in the package. Exit code 3: no "
    "claim is decided, or a run cannot be read.",
    "hpcdl claims runs/reports -o claims.md",
)
