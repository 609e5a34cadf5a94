"""``hpcdl testbed``: run a command on an emulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "testbed",
        help="emulate a cluster on this machine",
        description="Run COMMAND on an emulated cluster: network namespaces on one Linux machine, behind links of "
        "the rate that you say. Needs root. hpcdl run and mpirun in it start their ranks on the hosts in turn; "
        "ssh HOST enters one. The exit code is the command's.",
    )
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="host1, host2, ...; at most 64")
    parser.add_argument(
        "--rate", required=True, help="of each link, in both directions, as tc writes it: 200mbit, 1gbit"
    )
    parser.add_argument(
        "--slow", action="append", default=[], metavar="HOST:RATE", help="a host with another rate; repeatable"
    )
    parser.add_argument("words", nargs="*", metavar="-- COMMAND", help="what to run, with its arguments")
    parser.set_defaults(command=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.launch.testbed import NoTestbed, hold, plan
    from hpcdl.suite import UsageError

    # the parser's own reading of -- differs between versions of Python, and a command may have a -- too
    given = options.given
    command = given[given.index("--") + 1 :] if "--" in given else options.words
    try:
        return hold(plan(options.hosts, options.rate, options.slow), command)
    except NoTestbed as error:
        raise UsageError(str(error)) from None
