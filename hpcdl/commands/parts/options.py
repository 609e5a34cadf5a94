"""Options of commands: parse them, complete them in a shell, read and write the files that they name.

An error is one line with the nearest valid name.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from hpcdl import exit_codes
from hpcdl.commands.parts.topics import topic_of
from hpcdl.exit_codes import UsageError, refused
from hpcdl.launch.process import is_first
from hpcdl.registry import MAX_INTEGER, names, nearest, shortened

if TYPE_CHECKING:
    from hpcdl.analysis.over_time.regressions import Accepted
    from hpcdl.report.formats.document import Document
    from hpcdl.trace.log import Facts
    from hpcdl.trace.run import Run


FACTS: Final = ("ranks", "nodes", "library", "collective", "algorithm", "placement")
"""Keys of ``--log``."""
_MICROSECONDS: Final = {"us": 1, "ms": 10**3, "s": 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}


@dataclass(frozen=True)
class Command:
    """Declaration ``COMMAND`` of a file in ``hpcdl/commands``, which has the name of the command.

    Its functions: ``arguments(parser)`` declares options; ``execute(options)`` runs it and returns the exit code.
    """

    order: int
    """Position in ``hpcdl --help``; lower numbers come first."""
    summary: str
    """Line in ``hpcdl --help``."""
    description: str
    """First paragraph of the command's own ``--help``."""
    example: str
    """Last line of the command's own ``--help``."""


class Arguments(argparse.ArgumentParser):
    """argparse's parser with one line per error, printed by one rank of a job, without the usage."""

    def option(
        self,
        usage: str,
        effect: str | None = None,
        completer: Callable[..., list[str]] | None = None,
        **settings: Any,
    ) -> None:
        """Declare an option by its usage, ``-n --ranks RANKS``, or an argument by name and metavar, ``run RUN``.

        An option without a metavar is True if it is given. ``effect`` is the help. A shell completes words by
        ``completer``, one of the functions below; argcomplete calls it. ``settings``: see argparse.
        """
        words = usage.split()
        flags = [word for word in words if word.startswith("-")]
        names, metavars = (flags, words[len(flags) :]) if flags else (words[:1], words[1:])
        if metavars:
            settings["metavar"] = metavars[0]
        elif flags and "choices" not in settings:
            settings["action"] = "store_true"
        self.add_argument(*names, help=effect, **settings).completer = completer  # type: ignore[attr-defined]

    def log_option(self) -> None:
        """Declare ``--log``: pairs that state what logs of other tools leave open."""
        effect = f"what a log of another tool does not state: {', '.join(FACTS)}; may be repeated"
        self.option("--log KEY=VALUE", effect, action="append", type=_fact, default=[])

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        if is_first(os.environ):
            print(f"{self.prog}: {exit_codes.message(message.removeprefix('argument '))}", file=sys.stderr)
        self.exit(exit_codes.USAGE)

    def check_options(self, words: Sequence[str]) -> None:
        """Refuse the first unknown long option before ``--``, before argparse reports missing arguments."""
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            known = any(option.startswith(name) for option in self._option_string_actions)
            if name.startswith("--") and " " not in name and not known:
                self.refuse(name)

    def refuse(self, word: str) -> NoReturn:
        """Exit with an error about ``word``, an unknown option or an extra argument."""
        if word.startswith("-"):
            topic = topic_of(word)
            near = nearest(word, self._option_string_actions, f"{self.prog} --help lists all options")
            self.error(f"{word}: unknown option{f'; hpcdl help {topic} is about it' if topic else near}")
        self.error(f"{word}: one argument too many")


def whole_number(text: str) -> int:
    """Return the integer. Raises argparse.ArgumentTypeError for other text, and beyond 64 bits."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not a whole number") from None
    if abs(number) >= MAX_INTEGER:
        raise argparse.ArgumentTypeError(f"{shortened(number)} is out of range")
    return number


def _fact(text: str) -> tuple[str, str]:
    """Return key and value of ``--log``."""
    name, _, value = text.partition("=")
    if not value or (name in {"ranks", "nodes"} and not value.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text}: must be KEY=VALUE, such as ranks=4 or algorithm=ring")
    return chosen(name, FACTS), value


def duration(text: str) -> timedelta:
    """Return a time, written 30ms, 36h or 3d. Raises argparse.ArgumentTypeError."""
    number = re.fullmatch(r"(\d{1,6}(?:\.\d{1,9})?) ?([um]?s|h|d)", text.strip())
    if not number:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is no time in us, ms, s, h or d, such as 30ms or 36h")
    microseconds = Decimal(number[1]) * _MICROSECONDS[number[2]]
    if microseconds % 1:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is no whole number of microseconds")
    return timedelta(microseconds=int(microseconds))


def path(text: str) -> Path:
    """Return the path. Raises argparse.ArgumentTypeError for an empty text, which would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def suite_path(text: str) -> Path:
    """Return the path of a suite; ``./NAME`` becomes absolute, because NAME is that of a shipped suite."""
    return path(text).absolute() if text == f"./{path(text)}" and len(path(text).parts) == 1 else path(text)


def chosen(word: str, names: Sequence[str]) -> str:
    """Return ``word``. Raises argparse.ArgumentTypeError if it is not one of ``names``."""
    if word not in names:
        raise argparse.ArgumentTypeError(f"unknown {word!r}{nearest(word, names)}")
    return word


def case_patterns(parser: Arguments, effect: str) -> None:
    """Declare ``--case``, which may be repeated; ``effect`` is its help."""
    effect = f"{effect}; repeated, any of the patterns must match"
    parser.option("--case GLOB", effect, cases, action="append", default=[])


def case_options(parser: Arguments, effect: str, replacement: str) -> None:
    """Declare ``--case``, with the help ``effect``, ``--full``, and ``--set``, with the help ``replacement``."""
    case_patterns(parser, effect)
    parser.option("--full", "run also the cases that the suite marks `full`")
    parser.option("--set case.KEY=VALUE", replacement, action="append", default=[], dest="overrides")


def suite_argument(parser: Arguments, usage: str, effect: str | None = None) -> None:
    """Declare an argument, a suite, by its name and metavar; ``effect`` is its help."""
    parser.option(usage, effect, suites_and_files, type=suite_path)


def suites_and_files(prefix: str, **_: object) -> list[str]:
    """Return the shipped suites, and the files and folders that begin with ``prefix``."""
    from argcomplete.completers import FilesCompleter

    from hpcdl.cases.keys.suite_tables import suites

    return [*suites(), *FilesCompleter()(prefix)]


CONTRACTS: Final = ("training", "aggregation", "compression", "models")
"""Folders whose objects have a contract."""


def objects_with_a_contract(**_: object) -> list[str]:
    """Return the names of schemes, strategies, compressors and models."""
    return [name for folder in CONTRACTS for name in names(folder)]


def cases(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the names of the cases of the suite or the run that is on the command line."""
    from hpcdl import suite
    from hpcdl.analysis.run.pooling import runs_in
    from hpcdl.trace.schema import read

    given: dict[str, Any] = vars(parsed_args)
    source: Path = given.get("suite") or given.get("source") or given["run"]
    if source.is_dir() or source.suffix == ".h5":
        return [str(fields.get("case")) for fields in read(runs_in(source)[0], wanted=()).described]
    return [case.name for case in suite.load(source, full=True, check=False).cases]


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
    from hpcdl.trace.files import parse_toml, read_text, spelled_now

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


def rendered(
    folders: Sequence[Path], render: Callable[[Sequence[Run]], Text], *, launches: bool, facts: Facts = ()
) -> Text:
    """Return what ``render`` makes of runs, with ``launches`` pooled. Launches without a case go to stderr."""
    from hpcdl.analysis.run.pooling import ended_early, read_pooled

    for run in (run for folder in folders for run in ended_early(folder)):
        print(f"hpcdl: {run}: ended without a finished case; the report has the other launches", file=sys.stderr)
    with analysis_of(folders):
        groups = [folders] if launches else [[folder] for folder in folders]
        return render([read_pooled(group, facts) for group in groups])


def name_broken(lines: Sequence[str]) -> None:
    """Write a line for each section or figure of a report that could not be made."""
    for line in lines:
        print(f"hpcdl: {line}", file=sys.stderr)


def name_copies(run: Run) -> None:
    """Write a warning for each copy of a run, which does not count."""
    for line in run.copies:
        print(f"hpcdl: warning: {line}", file=sys.stderr)


def write_records(file: Path, folders: Sequence[Path], *, predict: bool = False, facts: Facts = ()) -> None:
    """Write the records of the runs in ``folders``, pooled, to the ``file`` that -o names. Raises UsageError.

    ``predict``: with predictions, if the runs keep none.
    """
    from hpcdl.analysis.run.pooling import read_pooled
    from hpcdl.report.run.findings import with_predictions, with_waiting
    from hpcdl.trace.schema import packed

    with analysis_of(folders):
        run = read_pooled(folders, facts)
        run = with_waiting(with_predictions(run) if predict else run)
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
        from hpcdl.report.formats import writers

        text = writers.markdown(pages)
    write_output("-o", file, text)
