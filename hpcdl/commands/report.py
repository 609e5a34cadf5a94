"""``hpcdl report``: write the report of runs."""

import argparse
import sys
from pathlib import Path
from typing import Final

from hpcdl.commands.parts.output import write_output, write_records
from hpcdl.commands.parts.parser import Arguments, Command, path
from hpcdl.exit_codes import OK, UsageError


def arguments(parser: Arguments) -> None:
    parser.option(
        "runs RUN", "a run folder, a folder of --launches, a run.h5, or records, .json.gz", nargs="+", type=path
    )
    effect = "write to a file: .html, .md, .tex, .csv, .json, .svg, or .json.gz: records, to be reported later"
    parser.option("-o FILE", effect, dest="output", type=path)
    parser.option("--figure TITLE", "of an .svg: the figure, by its title's beginning", default="")
    parser.option("--json", "one JSON document with a record per case")
    parser.option("--together", "pool the runs: launches of one suite, also on several numbers of nodes")


def execute(options: argparse.Namespace) -> int:
    from hpcdl.commands.parts.output import rendered
    from hpcdl.report.formats.summary import coloured

    output: Path | None = options.output
    if output is not None and output.name.endswith(".json.gz") and not options.json:
        write_records(output, options.runs)
        return OK
    form = _form(output, json=options.json)
    if options.figure and form != "svg":
        raise UsageError("--figure: only with -o FILE.svg")
    form = f"{form}:{options.figure}" if options.figure else form
    if output is None and not options.json and sys.stdout.isatty():
        form = "summary"
    (text,) = rendered(options.runs, [form], launches=options.together)
    if output is None:
        print(coloured(text) if form == "summary" else text)
    else:
        write_output("-o", output, text)
    return OK


def _form(output: Path | None, *, json: bool) -> str:
    """Return the format that the options choose. Raises UsageError for an unknown suffix."""
    suffixes = ["json"] if json else ["md", "html", "tex", "csv", "json", "svg"]
    if output is None:
        return suffixes[0]
    form = output.suffix.removeprefix(".")
    if form not in suffixes:
        raise UsageError(f"-o {output}: must end in {' or '.join(f'.{suffix}' for suffix in suffixes)}")
    return form


COMMAND: Final = Command(
    20,
    "report one or more runs",
    "Report one or more runs: a summary on a terminal, Markdown in a pipe or a file. "
    "hpcdl/report/README.md describes the columns of CSV and JSON.",
    "hpcdl report runs/quickstart -o page.html",
)
