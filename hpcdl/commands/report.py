"""``hpcdl report``: tables from runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import hpcdl
from hpcdl.exit_codes import OK

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "report", help="tables from runs", description="Print a report of one or more runs."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("-o", dest="output", type=Path, metavar="PAGE", help="write to PAGE: .md, .csv or .json")
    parser.add_argument("--json", action="store_true", help="one JSON document with a record per case")
    parser.add_argument("--together", action="store_true", help="the runs are launches of one suite: pool them")
    parser.set_defaults(command=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    output: Path | None = options.output
    form = _form(output, json=options.json)
    text = rendered(options.runs, form, launches=options.together)
    if output is None:
        print(text)
    else:
        write(text, output)
    return OK


def _form(output: Path | None, *, json: bool) -> str:
    """The format that was asked for. Raises UsageError for a page that ends in none."""
    from hpcdl.suite import UsageError

    known = ["json"] if json else ["md", "csv", "json"]
    if output is None:
        return known[0]
    form = output.suffix.removeprefix(".")
    if form not in known:
        raise UsageError(f"-o {output}: must end in {' or '.join(f'.{one}' for one in known)}")
    return form


def rendered(folders: Sequence[Path], form: str, *, launches: bool) -> str:
    """Return the report of the runs in ``folders``, which may be ``launches`` of one suite. Raises UsageError."""
    from hpcdl.analysis.scaling import AmbiguousCaseError
    from hpcdl.analysis.together import together
    from hpcdl.report.render import render
    from hpcdl.suite import UsageError
    from hpcdl.trace.record import TraceError

    try:
        runs = [hpcdl.read(folder) for folder in folders]
        return render([together(runs)] if launches else runs, form)
    except (TraceError, AmbiguousCaseError, ValueError) as error:
        raise UsageError(str(error)) from None


def write(text: str, output: Path) -> None:
    """Write a report to ``output``. Raises UsageError if that cannot be."""
    from hpcdl.suite import UsageError

    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"-o {output}: {error.strerror}") from None
