"""``hpcdl testbed``: run a command on an emulated cluster."""

import argparse
from typing import Final

from hpcdl.commands.parts.options import Arguments, Command, duration, whole_number


def arguments(parser: Arguments) -> None:
    parser.option("--hosts N", "host1, host2, ...; at most 64", type=whole_number, required=True)
    parser.option("--rate RATE", "rate of each link in both directions, in bits: 200mbit, 1gbit", required=True)
    parser.option("--slow HOST:RATE", "a host with another rate; repeatable", action="append", default=[])
    slower = "a host whose processes may use so many cores together, such as host3:0.8; repeatable"
    parser.option("--slow-cpu HOST:CORES", slower, action="append", default=[])
    effect = "two switches, each with half of the hosts, and an uplink of this rate between them"
    parser.option("--uplink --trunk RATE", effect, default="", dest="trunk")
    parser.option("--latency TIME", "delay from host to host: 30ms, 500us", type=duration)
    parser.add_argument("words", nargs="*", metavar="-- COMMAND", help="command to run, with its arguments")


def execute(options: argparse.Namespace) -> int:
    from hpcdl.launch.testbed import plan, run_in_testbed

    # argparse treats -- differently in different versions of Python, and the command may contain -- too
    given = options.given
    command = given[given.index("--") + 1 :] if "--" in given else options.words
    slow, cpu = options.slow, options.slow_cpu
    planned = plan(options.hosts, options.rate, slow, options.trunk, options.latency, cpu)
    return run_in_testbed(planned, command)


COMMAND: Final = Command(
    60,
    "emulate a cluster on this machine",
    "Run COMMAND on an emulated cluster: network namespaces on one Linux machine, with links of the given "
    "rate. Needs root. Inside, hpcdl run and mpirun place ranks on the hosts round-robin; ssh HOST COMMAND runs a "
    "command on one host. The exit code is that of COMMAND.",
    "hpcdl testbed --hosts 4 --rate 100mbit -- hpcdl run interconnect",
)
