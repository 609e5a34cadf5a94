"""``hpcdl report``: write the report of runs."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import Arguments, Command, path, write_output, write_records
from hpcdl.exit_codes import FAILED, OK, UsageError

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Reference
    from hpcdl.trace.run import Run

MAX_LINK: Final = 10**13
"""Rate of a host's links (bit/s), at most."""
RECORDS: Final = "json.xz"
"""Form of records, which have nothing that a report adds: the options :data:`COMPARED`."""
COMPARED: Final = ("figure", "table", "link", "network")
LIST: Final = "list"
"""In the place of a title: print all titles."""


def arguments(parser: Arguments) -> None:
    effect = "a run folder, a folder of --launches, a run.h5, records, .json.xz, or a log (hpcdl help logs)"
    parser.option("runs RUN", effect, nargs="+", type=path)
    effect = "write to a file: .html, .md, .tex, .csv, .json; .svg, .pdf, .png: one figure; .json.xz: records"
    parser.option("-o FILE", effect, dest="output", type=path)
    parser.option(
        "--figure TITLE", "title of the figure in -o FILE.svg, .pdf or .png; list: print all titles", default=""
    )
    parser.option("--table TITLE", "one table; -o FILE.tex: to be input; list: print the titles", default="")
    parser.option("--json", "one JSON document with a record per case")
    effect = "rate of a host's link, such as 200gbit (default: of the NICs that carried the bytes)"
    parser.option("--link RATE", effect, type=_link, default=0.0)
    effect = "preset, file of hpcdl predict --save, or run: times are compared with those expected on it"
    parser.option("--network NETWORK", effect, default="")
    parser.option("--predict", "fit a network to runs that keep no predictions, and predict their times on it")
    parser.option("--together", "pool the runs: launches of one suite, also on several numbers of nodes")
    parser.log_option()


def _link(text: str) -> float:
    """Return a rate in bytes/s."""
    from hpcdl.launch.process import LaunchError
    from hpcdl.launch.testbed import bits_of

    try:
        return bits_of(text, text, most=MAX_LINK) / 8
    except LaunchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def execute(options: argparse.Namespace) -> int:
    from hpcdl.commands.parts.options import name_broken, rendered
    from hpcdl.prediction.predict import network_named
    from hpcdl.report.formats.writers import coloured
    from hpcdl.report.run.findings import Reference

    output: Path | None = options.output
    if (form := _form(options)) == RECORDS:
        write_records(options.output, options.runs, predict=options.predict, facts=options.log)
        return OK
    network = network_named(options.network, options.log)[0].network if options.network else None
    make = partial(_text, options, form, Reference(network, options.link, options.predict))
    text, broken = rendered(options.runs, make, launches=options.together, facts=options.log)
    if output is not None and LIST not in {options.figure, options.table}:
        write_output("-o", output, text)
    else:
        print(coloured(text) if form == "summary" and isinstance(text, str) else text)
    name_broken(broken)
    return FAILED if broken else OK


def _text(
    options: argparse.Namespace, form: str, reference: "Reference", runs: "Sequence[Run]"
) -> "tuple[str | bytes, Sequence[str]]":
    """Return the report, or the figure, the table or the titles that the options name; and what is broken."""
    from hpcdl.report import render

    if LIST in {options.figure, options.table}:
        return "\n".join(render.tables(runs, reference) if options.table else render.figures(runs, reference)), ()
    if form in render.FIGURES:
        from hpcdl.report.formats.figure import standalone  # late: matplotlib may be missing

        return standalone(render.chosen("figure", render.figures(runs, reference), options.figure), form), ()
    if options.table:
        return render.TABLES[form](render.chosen("table", render.tables(runs, reference), options.table)), ()
    (text,), broken = render.renderings(runs, [form], reference)
    return text, broken


def _form(options: argparse.Namespace) -> str:
    """Return the format that the options choose. Raises UsageError for one that does not suit them."""
    from hpcdl.report.render import FIGURES, TABLES, missing

    suffixes = ["json"] if options.json else ["md", "html", "tex", "csv", "json", *FIGURES, RECORDS]
    name = options.output.name if options.output else f".{suffixes[0]}"
    form = next((suffix for suffix in reversed(suffixes) if name.endswith(f".{suffix}")), "")
    if not form:
        raise UsageError(f"-o {options.output}: must end in {' or '.join(f'.{suffix}' for suffix in suffixes)}")
    if form in {"html", *FIGURES} and missing():
        raise UsageError(f"-o {options.output}: {missing()}")
    if form == RECORDS and (ignored := [name for name in COMPARED if getattr(options, name)]):
        raise UsageError(f"-o {options.output}: has the records of the runs, and takes no --{ignored[0]}")
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
