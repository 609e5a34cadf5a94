"""``hpcdl check``: look at this machine before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.exit_codes import FAILED, OK

if TYPE_CHECKING:
    import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "check",
        help="preflight",
        description="Look at this machine before a run: MPI, launcher, cores, clocks, disk, GPU.",
    )
    parser.set_defaults(command=execute)


def execute(_options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.launch.preflight import preflight

    failed = False
    for finding in preflight():
        print(f"{finding.verdict:7}  {finding.what}: {finding.detail}")
        failed |= finding.verdict == "FAILED"
    return FAILED if failed else OK
