"""``hpcdl report``: write the report of runs."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.output import write_output, write_records
from hpcdl.commands.parts.parser import Arguments, Command, path
from hpcdl.exit_codes import OK, UsageError

if TYPE_CHECKING:
    from hpcdl.trace.files import JsonObject
    from hpcdl.trace.run import Run

MAX_LINK: Final = 10**13
"""Rate of a host's links (bit/s), at most."""
LIST: Final = "list"
"""In the place of a title: print all titles."""


def arguments(parser: Arguments) -> None:
    effect = "a run folder, a folder of --launches, a run.h5, or records, .json.xz"
    parser.option("runs RUN", effect, nargs="+", type=path)
    effect = "write to a file: .html, .md, .tex, .csv, .json; .svg, .pdf, .png: one figure; .json.xz: records"
    parser.option("-o FILE", effect, dest="output", type=path)
    parser.option("--figure TITLE", "the figure of -o FILE.svg, .pdf, .png; list: print the titles", default="")
    parser.option("--table TITLE", "one table; -o FILE.tex: to be input; list: print the titles", default="")
    parser.option("--json", "one JSON document with a record per case")
    effect = "rate of a host's link, such as 200gbit (default: of the NICs that carried the bytes)"
    parser.option("--link RATE", effect, default="")
    effect = "preset, file of hpcdl predict --save, or run: times are compared with those expected on it"
    parser.option("--network NETWORK", effect, default="")
    parser.option("--together", "pool the runs: launches of one suite, also on several numbers of nodes")


def execute(options: argparse.Namespace) -> int:
    from hpcdl.commands.parts.output import rendered
    from hpcdl.report.formats.summary import coloured
    from hpcdl.trace.records import SUFFIX

    output: Path | None = options.output
    if output is not None and output.name.endswith(SUFFIX) and not options.json:
        write_records(output, options.runs)
        return OK
    form = _form(options)
    text = rendered(options.runs, partial(_text, options, form), launches=options.together)
    if output is not None and LIST not in {options.figure, options.table}:
        write_output("-o", output, text)
    else:
        print(coloured(text) if form == "summary" and isinstance(text, str) else text)
    return OK


def _text(options: argparse.Namespace, form: str, runs: "Sequence[Run]") -> str | bytes:
    """Return the report of ``runs``, or the figure, the table or the titles that the options name."""
    from dataclasses import replace

    from hpcdl.launch.testbed import bits_of
    from hpcdl.report import render

    stated: JsonObject = {"expected_network": options.network} if options.network else {}
    if options.link:
        stated["link_bits_per_second"] = bits_of(options.link, f"--link {options.link}", most=MAX_LINK)
    runs = [replace(run, environment={**run.environment, **stated}) for run in runs] if stated else runs
    if LIST in {options.figure, options.table}:
        return "\n".join(render.tables(runs) if options.table else render.figures(runs))
    if form in render.FIGURES:
        from hpcdl.report.formats.figure import standalone  # late: matplotlib may be missing

        return standalone(render.chosen("figure", render.figures(runs), options.figure), form)
    if options.table:
        return render.TABLES[form](render.chosen("table", render.tables(runs), options.table))
    return render.render(runs, form)


def _form(options: argparse.Namespace) -> str:
    """Return the format that the options choose. Raises UsageError for one that does not suit them."""
    from hpcdl.report.render import FIGURES, TABLES
    from hpcdl.trace.records import SUFFIX

    suffixes = ["json"] if options.json else ["md", "html", "tex", "csv", "json", *FIGURES]
    form = suffixes[0] if options.output is None else options.output.suffix.removeprefix(".")
    if form not in suffixes:
        known = " or ".join([*(f".{suffix}" for suffix in suffixes), *([] if options.json else [SUFFIX])])
        raise UsageError(f"-o {options.output}: must end in {known}")
    for option, title, forms in (("--figure", options.figure, FIGURES), ("--table", options.table, TABLES)):
        if title not in {"", LIST} and form not in forms:
            known = " or ".join(f".{suffix}" for suffix in forms)
            raise UsageError(
                f"{option}: only with -o FILE, which ends in {known}; {option} list prints the titles"
            )
    whole = options.output is None and not options.json and not options.table
    return "summary" if whole and sys.stdout.isatty() else form


COMMAND: Final = Command(
    20,
    "report one or more runs",
    "Report one or more runs: a summary on a terminal, Markdown in a pipe or a file. "
    "`hpcdl help columns` describes the columns of CSV and JSON.",
    "hpcdl report runs/quickstart -o page.html",
)
