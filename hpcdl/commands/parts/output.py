"""Read and write the files that options of commands name."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from hpcdl.exit_codes import UsageError, refused
from hpcdl.registry import shortened

if TYPE_CHECKING:
    from hpcdl.analysis.over_time.regressions import Accepted
    from hpcdl.report.formats.document import Document
    from hpcdl.trace.run import Run

Text = TypeVar("Text")
KEYS: Final = {
    "case": (str, "a text"),
    "reason": (str, "a text"),
    "expires": (dt.date, "a date without quotes, such as 2027-01-31"),
    "change": (str, "the largest accepted slowdown, such as '10%'"),
}
"""Type of each key of a table ``[[accept]]``, and its description."""


def share(text: str, limit: float = 1.0) -> float:
    """Return a share below ``limit``, written 3% or 0.03. Raises argparse.ArgumentTypeError."""
    number = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)( ?%)?", text.strip())
    value = float(number[1]) / (100 if number[2] else 1) if number else -1.0
    if not 0 <= value < limit:
        raise argparse.ArgumentTypeError(f"{text!r} is no share below {limit:g}, such as 3% or 0.03")
    return value


def read_accepted(path: Path) -> list[Accepted]:
    """Read the tables ``[[accept]]``. Raises UsageError, in one line that names the file and the key."""
    from hpcdl.analysis.over_time.regressions import Accepted
    from hpcdl.cases.keys.suite_tables import check_keys
    from hpcdl.trace.files import parse_toml, read_text
    from hpcdl.trace.older_names import spelled_now

    place = f"--accept {path}"
    accepted = []
    with refused():
        toml = parse_toml(read_text(path), place)
        check_keys(toml, ("accept",), place)
        tables = toml.get("accept", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise UsageError(f"{place}: accept: must be tables, [[accept]]")
        for number, table in enumerate(tables, 1):
            where = f"{place}: [[accept]] {number}"
            check_keys(table, KEYS, where)
            for key, (kind, description) in KEYS.items():
                value = table.get(key)
                if type(value) is not kind or not str(value).strip():  # a time of day is a date too
                    raise UsageError(f"{where}: {key}: must be {description}, not {shortened(value)}")
            try:
                change = share(table["change"], limit=100)
            except argparse.ArgumentTypeError as error:
                raise UsageError(f"{where}: change: {error}") from None
            accepted.append(Accepted(**{**table, "case": spelled_now(table["case"]), "change": change}))
    return accepted


@contextmanager
def analysis_of(folders: Sequence[Path]) -> Iterator[None]:
    """Turn the errors of reading and analysing the runs in ``folders`` into UsageError."""
    from hpcdl.analysis.run.pooling import AmbiguousCaseError
    from hpcdl.trace.recorder import TraceError, analysed

    names = " ".join(map(str, folders))
    try:
        with analysed(names):
            yield
    except (TraceError, AmbiguousCaseError) as error:
        raise UsageError(str(error)) from None
    except ValueError as error:
        raise UsageError(f"{names}: {str(error).removeprefix(f'{names}: ')}") from None


def rendered(folders: Sequence[Path], render: Callable[[Sequence[Run]], Text], *, launches: bool) -> Text:
    """Return what ``render`` makes of runs, with ``launches`` pooled. Launches without a case go to stderr."""
    from hpcdl.analysis.run.pooling import ended_early, read_pooled

    for run in (run for folder in folders for run in ended_early(folder)):
        print(f"hpcdl: {run}: ended without a finished case; the report has the other launches", file=sys.stderr)
    with analysis_of(folders):
        runs = [read_pooled(group) for group in ([folders] if launches else ([folder] for folder in folders))]
        return render(runs)


def name_broken(lines: Sequence[str]) -> None:
    """Write a line for each section or figure of a report that could not be made."""
    for line in lines:
        print(f"hpcdl: {line}", file=sys.stderr)


def name_copies(run: Run) -> None:
    """Write a warning for each copy of a run, which does not count."""
    for line in run.copies:
        print(f"hpcdl: warning: {line}", file=sys.stderr)


def write_records(file: Path, folders: Sequence[Path]) -> None:
    """Write the records of the runs in ``folders``, pooled, to the ``file`` that -o names. Raises UsageError."""
    from hpcdl.analysis.run.pooling import read_pooled
    from hpcdl.trace.records import packed

    with analysis_of(folders):
        run = read_pooled(folders)
        data = packed(run)
    name_copies(run)
    write_output("-o", file, data)


def check_page(output: Path | None, *suffixes: str) -> None:
    """Raise UsageError if the page that -o names has none of the suffixes, or lacks the libraries of HTML."""
    from hpcdl.report.render import missing

    if output is not None and output.suffix not in suffixes:
        raise UsageError(f"-o {output}: must end in {' or '.join(suffixes)}")
    if output is not None and output.suffix == ".html" and missing():
        raise UsageError(f"-o {output}: {missing()}")


@contextmanager
def output_path(option: str, file: Path) -> Iterator[Path]:
    """Yield the path to write the ``file`` to that ``option`` names.

    A regular file is replaced at once, because a collector may read it at any moment. A device, a pipe or the
    target of a link is written to. Raises UsageError.
    """
    from hpcdl.trace.files import atomic_write

    try:
        if file.exists() and not file.is_file():
            yield file
        else:
            with atomic_write(Path(os.path.realpath(file))) as temporary:
                yield temporary
    except OSError as error:
        raise UsageError(f"{option} {file}: cannot be written: {error.strerror}") from None


def write_output(option: str, file: Path, text: str | bytes) -> None:
    """Write ``text`` to the ``file`` that ``option`` names, in UTF-8. Raises UsageError."""
    with output_path(option, file) as path:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def write_page(file: Path, pages: Sequence[Document]) -> None:
    """Write documents to the ``file`` that -o names, in HTML or Markdown by its suffix. Raises UsageError."""
    if file.suffix == ".html":
        from hpcdl.report.formats import html

        text = html.written(pages)
    else:
        from hpcdl.report.formats import markup

        text = markup.markdown(pages)
    write_output("-o", file, text)
