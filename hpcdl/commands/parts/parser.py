"""Parse command lines, where an error is one line with the nearest valid name, and complete them in a shell."""

import argparse
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NoReturn

from hpcdl import exit_codes
from hpcdl.launch.process import is_first
from hpcdl.registry import MAX_INTEGER, names, nearest, shortened

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
            self.error(f"{word}: unknown option{nearest(word, self._option_string_actions)}")
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
