"""The command line. Each of thousands of ranks starts here, so that large packages are imported late."""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

from hpcdl import __version__
from hpcdl.exit_codes import FAILED, INTERRUPTED, OK, USAGE, UsageError, message
from hpcdl.extras import missing
from hpcdl.launch import process
from hpcdl.launch.process import is_first

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from hpcdl.commands.parts.options import Command


def commands() -> dict[str, Any]:
    """Return the modules of ``hpcdl/commands``, by name, in the order of ``--help``; each has a ``COMMAND``."""
    from hpcdl import commands as folder

    names = [module.name for module in pkgutil.iter_modules(folder.__path__) if not module.ispkg]
    modules = {name: importlib.import_module(f"{folder.__name__}.{name}") for name in names}
    return dict(sorted(modules.items(), key=lambda item: int(item[1].COMMAND.order)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if arguments is None:
        process.prepare()
    _prepare_streams()
    if sys.flags.optimize > 1:
        print("hpcdl: python -OO removes the docstrings that state costs; use -O at most", file=sys.stderr)
        return USAGE
    options = None
    try:
        options = _options(list(sys.argv[1:] if arguments is None else arguments))
        code = _execute(options)
        sys.stdout.flush()
    except ImportError as error:
        if not (line := missing(error.name)):
            raise
        print(f"hpcdl: {line}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        more = "; finished cases are kept, continue with --resume" if hasattr(options, "resume") else ""
        print(f"hpcdl: interrupted{more}", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # flushing the rest of the output at exit must not raise a second error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader has ended: | head
            print(f"hpcdl: {message(error)}", file=sys.stderr)
        return FAILED
    return code


def _execute(options: argparse.Namespace) -> int:
    from hpcdl.trace.recorder import TraceError

    try:
        return int(options.execute(options))
    except (UsageError, TraceError) as error:
        is_of_all_ranks = isinstance(error, process.LaunchError)
        if is_of_all_ranks and not is_first(os.environ):
            return OK  # an error code of this rank could end the first before it prints the message
        print(f"hpcdl: {message(error)}", file=sys.stderr)
        code = error.code if isinstance(error, UsageError) else USAGE
        return process.write_status(code, 0) if is_of_all_ranks else code


def _options(given: list[str]) -> argparse.Namespace:
    """Return the parsed options. Exits with code 2 and one line if the command line is wrong."""
    import argparse
    import itertools

    from hpcdl.commands.parts.options import Arguments
    from hpcdl.registry import nearest

    parser = Arguments(
        prog="hpcdl",
        description="Benchmark distributed deep learning over MPI.",
        epilog="exit codes: 0 fine; 1 a case or check failed, a case cannot be run here, or something regressed; "
        "2 wrong usage or suite; 3 inconclusive; 75 interrupted, can resume; 78 the launcher does not fit the MPI "
        "library",
    )
    version = f"hpcdl {__version__}"
    parser.add_argument("--version", action="version", version=version, help="show the version and exit")
    parsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, module in commands().items():
        command: Command = module.COMMAND
        example = f"example: {command.example}"
        subparser = parsers.add_parser(name, help=command.summary, description=command.description, epilog=example)
        module.arguments(subparser)
        subparser.set_defaults(execute=module.execute)
    if "_ARGCOMPLETE" in os.environ:  # of a shell with completion
        import argcomplete

        argcomplete.autocomplete(parser)
    before = list(itertools.takewhile(lambda word: word.startswith("-"), given))
    _, unknown = parser.parse_known_args(before)  # --help and --version end here
    if unknown:
        parser.refuse(unknown[0])
    if len(given) == len(before):
        parser.error(f"no command{nearest('', parsers.choices)}")
    name, *after = given[len(before) :]
    if name not in parsers.choices:
        parser.error(f"{name}: unknown command{nearest(name, parsers.choices)}")
    chosen = parsers.choices[name]
    chosen.check_options(after)
    options, unknown = parser.parse_known_args(given, argparse.Namespace(given=given))
    if unknown:
        chosen.refuse(unknown[0])
    return options


def _prepare_streams() -> None:
    """Replace closed standard streams by the null device, and escape characters that the encoding lacks.

    Else a report could be lost in a locale without Greek letters, and a file could get the number of a stream.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
