"""``hpcdl check``: check this machine before a run, or check an aggregation scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.command import Command
from hpcdl.exit_codes import FAILED, OK

if TYPE_CHECKING:
    import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments and options."""
    parser.add_argument(
        "scheme",
        nargs="?",
        metavar="SCHEME",
        help="a name, or MODULE:FUNCTION of your own; MODULE may be in the current folder",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    return _machine() if options.scheme is None else _scheme(options.scheme)


def _machine() -> int:
    from hpcdl.launch.preflight import preflight

    failed = False
    for finding in preflight():
        advice = f"; {finding.advice}" if finding.advice else ""
        print(f"{finding.verdict:7}  {finding.subject}: {finding.detail}{advice}")
        failed |= finding.verdict == "FAILED"
    return FAILED if failed else OK


def _scheme(name: str) -> int:
    from pathlib import Path

    from hpcdl import registry
    from hpcdl.aggregation.parts.traits import Aggregation
    from hpcdl.cases.parts.scheme_contract import check_scheme
    from hpcdl.cases.parts.sparse_contract import check_sparse_scheme
    from hpcdl.suite import UsageError

    registry.look_in(Path.cwd())
    try:
        scheme, traits = registry.find("aggregation", name), registry.traits("aggregation", name, Aggregation)
    except ValueError as error:
        raise UsageError(f"check: {error}") from None
    failed = False
    for check in check_sparse_scheme(scheme) if traits.sparse else check_scheme(scheme, traits):
        print(f"{'ok' if check.holds else 'FAILED':7}  {check.what}: {check.detail}", flush=True)
        failed |= not check.holds
    return FAILED if failed else OK


COMMAND: Final = Command(
    50,
    "check this machine, or a scheme of your own",
    "Check this machine before a run: MPI, launcher, cores, clocks, disk, GPU. With SCHEME, check that an "
    "aggregation scheme computes exact sums, without deadlock, at the cost that its docstring states.",
    arguments,
    execute,
)
