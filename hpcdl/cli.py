"""The command line; thin. Heavy imports are late: thousands of ranks start through here."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

import hpcdl
from hpcdl.arguments import Arguments
from hpcdl.exit_codes import FAILED, INTERRUPTED, USAGE
from hpcdl.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: Final = ("run", "report", "predict", "list", "check", "testbed")
"""Modules of :mod:`hpcdl.commands`, in the order of ``hpcdl --help``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    from hpcdl.suite import UsageError

    try:
        options = _options(given)
        code = int(options.command(options))
        sys.stdout.flush()
    except UsageError as error:
        print(f"hpcdl: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        from hpcdl.launch.guard import is_first
        from hpcdl.launch.mpirun import STATUS

        if is_first(os.environ) and STATUS not in os.environ:  # else whoever launched us says so
            print("hpcdl: interrupted; finished cases are kept, go on with --resume", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # what is left to print must not complain a second time at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader has left: | head
            print(f"hpcdl: {error}", file=sys.stderr)
        return FAILED
    return code


def _options(given: list[str]) -> argparse.Namespace:
    """What was asked for. Exits with code 2 and one line for what nobody understands."""
    parser = Arguments(
        prog="hpcdl",
        description="Benchmark what distributed deep learning does to a machine.",
        epilog="exit codes: 0 fine; 1 a check failed or a case cannot be run here; 2 wrong usage or suite; "
        "75 interrupted, can resume; 78 the launcher does not fit the MPI library",
    )
    parser.add_argument("--version", action="version", version=f"hpcdl {hpcdl.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"hpcdl.commands.{name}").add(commands)
    before = list(itertools.takewhile(lambda word: word.startswith("-"), given))
    _, unknown = parser.parse_known_args(before)  # --help and --version end here
    if unknown:
        parser.refuse(unknown[0])
    if len(given) == len(before):
        parser.error(f"no command{nearest('', COMMANDS)}")
    name, *after = given[len(before) :]
    if name not in COMMANDS:
        parser.error(f"{name}: unknown command{nearest(name, COMMANDS)}")
    chosen = commands.choices[name]
    chosen.check_options(after)
    options, unknown = parser.parse_known_args(given, argparse.Namespace(given=given))
    if unknown:
        chosen.refuse(unknown[0])
    return options
