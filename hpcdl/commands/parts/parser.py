"""Parse command lines, where an error is one line with the nearest valid name, and complete them in a shell."""

import argparse
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

from hpcdl.exit_codes import USAGE
from hpcdl.launch.process import is_first
from hpcdl.registry import MAX_INTEGER, nearest, shortened

_NAMES: Final = {"us": "microseconds", "ms": "milliseconds", "s": "seconds", "h": "hours", "d": "days"}


@dataclass(frozen=True)
class Command:
    """Declaration of a command: ``COMMAND`` of a file in ``hpcdl/commands``, which has the command's name."""

    order: int
    """Position in ``hpcdl --help``; lower numbers come first."""
    summary: str
    """Line in ``hpcdl --help``."""
    description: str
    """First paragraph of the command's own ``--help``."""
    arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]
    """Run the command with its options; return the exit code."""
    example: str
    """Last line of the command's own ``--help``."""


class Arguments(argparse.ArgumentParser):
    """argparse's parser with one line per error, printed by one rank of a job, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        from hpcdl.report.formats.cells import message as visible_message

        if is_first(os.environ):
            print(f"{self.prog}: {visible_message(message.removeprefix('argument '))}", file=sys.stderr)
        self.exit(USAGE)

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


class Version(argparse.Action):
    """Print the version and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """See :class:`Version`."""
        from importlib.metadata import version  # late: each rank of a job parses its command line

        print(f"hpcdl {version('hpcdl')}")
        parser.exit()


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
    number = re.fullmatch(r"(\d{1,6}(?:\.\d+)?) ?([um]?s|h|d)", text.strip())
    if not number:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is no time in us, ms, s, h or d, such as 30ms or 36h")
    return timedelta(**{_NAMES[number[2]]: float(number[1])})


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


def case_patterns(parser: argparse.ArgumentParser, effect: str) -> None:
    """Declare ``--case``, which may be repeated; ``effect`` is its help."""
    patterns = parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="GLOB",
        help=f"{effect}; repeated, any of the patterns must match",
    )
    complete(patterns, cases)


def full_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--full``."""
    parser.add_argument("--full", action="store_true", help="run also the cases that the suite marks `full`")


def complete(action: argparse.Action, words: Callable[..., list[str]]) -> None:
    """Let a shell complete an argument by ``words``, one of the functions below; argcomplete calls it."""
    action.completer = words  # type: ignore[attr-defined]


def suites_and_files(prefix: str, **_: object) -> list[str]:
    """Return the shipped suites, and the files and folders that begin with ``prefix``."""
    from argcomplete.completers import FilesCompleter

    from hpcdl.cases.keys.suite_tables import suites

    return [*suites(), *FilesCompleter()(prefix)]


def schemes_and_strategies(**_: object) -> list[str]:
    """Return the names of the aggregation schemes and of the training strategies."""
    from hpcdl import registry

    return [*registry.names("aggregation"), *registry.names("training")]


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


MAX_DIGITS: Final = 16
MIN_FACTOR: Final = 2


def declare(parser: argparse.ArgumentParser, metavar: str = "COLLECTIVE") -> None:
    """Declare the collective, sizes, schemes, ranks and run folder."""
    parser.add_argument(
        "collective",
        nargs="?",
        default="allreduce",
        metavar=metavar,
        help="allreduce (default), reduce_scatter, allgather, all_to_all, broadcast or reduce",
    )
    parser.add_argument("-b", dest="least", default="8", metavar="SIZE", help="smallest size (default: 8)")
    parser.add_argument("-e", dest="most", default="4M", metavar="SIZE", help="largest size (default: 4M)")
    parser.add_argument(
        "-f", dest="factor", type=whole_number, default=2, metavar="N", help="between sizes (default: %(default)s)"
    )
    parser.add_argument(
        "-a",
        "--aggregation",
        default="native,ring",
        metavar="NAMES",
        help="schemes, of `hpcdl list aggregation` (default: %(default)s)",
    )
    parser.add_argument("-n", "--ranks", type=whole_number, metavar="RANKS", help="ranks (default: one per core)")
    parser.add_argument(
        "-r", "--repetitions", type=whole_number, default=20, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument("-d", "--dtype", default="float32", metavar="TYPE", help="float32 (default) or float64")
    parser.add_argument(
        "-o", dest="folder", type=path, metavar="DIR", help="keep the run here (default: runs/bench-TIME)"
    )
    parser.add_argument("--resume", action="store_true", help="measure the rows that the run in DIR lacks")


def suite_text(options: argparse.Namespace, name: str) -> str:
    """Return the text of a suite of one case per size and scheme, in the order of the rows."""
    keys = {
        "kind": "collective",
        "collective": options.collective,
        "message_bytes": _sizes(options),
        "aggregation": options.aggregation.split(","),
        "ranks": options.ranks or "all",
        "repetitions": options.repetitions,
        "dtype": options.dtype,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join([f'[suite]\nname = "{name}"\n[[case]]', *lines, ""])


def _sizes(options: argparse.Namespace) -> list[int]:
    from hpcdl.cases.keys.key import size
    from hpcdl.suite import UsageError

    ends = []
    for name, text in (("-b", options.least), ("-e", options.most)):
        found = int(text) if text.isdecimal() and len(text) < MAX_DIGITS else size(text)
        if found is None:
            raise UsageError(f"{name} {text}: must be a size in bytes, such as 8, 64K or 128M")
        ends.append(found)
    least, most = ends
    if options.factor < MIN_FACTOR or not 1 <= least <= most:
        given = f"-b {options.least} -e {options.most} -f {options.factor}"
        raise UsageError(f"{given}: sizes grow from at least 1 by a factor of at least {MIN_FACTOR}")
    sizes = [least]
    while sizes[-1] * options.factor <= most:
        sizes.append(sizes[-1] * options.factor)
    return sizes
