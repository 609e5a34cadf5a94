"""``hpcdl testbed``: run a command on an emulated cluster."""

import argparse
from typing import Final

from hpcdl.commands.parts.parser import Command, duration, whole_number


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hosts", type=whole_number, required=True, metavar="N", help="host1, host2, ...; at most 64"
    )
    parser.add_argument(
        "--rate",
        required=True,
        help="rate of each link in both directions, in bits: 200mbit, 1gbit",
    )
    parser.add_argument(
        "--slow", action="append", default=[], metavar="HOST:RATE", help="a host with another rate; repeatable"
    )
    parser.add_argument(
        "--trunk",
        default="",
        metavar="RATE",
        help="two switches, each with half of the hosts, and a link of this rate between them",
    )
    parser.add_argument("--latency", type=duration, metavar="TIME", help="delay from host to host: 30ms, 500us")
    parser.add_argument("words", nargs="*", metavar="-- COMMAND", help="command to run, with its arguments")


def execute(options: argparse.Namespace) -> int:
    from hpcdl.launch.testbed import plan, run_in_testbed

    # argparse treats -- differently in different versions of Python, and the command may contain -- too
    given = options.given
    command = given[given.index("--") + 1 :] if "--" in given else options.words
    planned = plan(options.hosts, options.rate, options.slow, options.trunk, options.latency)
    return run_in_testbed(planned, command)


COMMAND: Final = Command(
    60,
    "emulate a cluster on this machine",
    "Run COMMAND on an emulated cluster: network namespaces on one Linux machine, with links of the given "
    "rate. Needs root. Inside, hpcdl run and mpirun place ranks on the hosts round-robin; ssh HOST COMMAND runs a "
    "command on one host. The exit code is that of COMMAND.",
    arguments,
    execute,
    "hpcdl testbed --hosts 4 --rate 100mbit -- hpcdl run interconnect",
)
