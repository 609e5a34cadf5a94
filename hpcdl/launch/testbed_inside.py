"""First process in a testbed's namespaces: create the hosts, run the command, reap child processes.

    command, mpirun     host1       host2             each host: a sleeping process in its own namespaces
         eth0           eth0        eth0              (network, host name, mounts, IPC)
          |              | rate      | rate           and a pair of virtual cards, both limited,
    ------+--------------+-----------+------ bridge   so that sending and receiving have the rate

With a trunk, the second half of the hosts is on a second bridge, and a pair of cards joins the bridges. Latency
is that of netem at the cards on the bridge, or of pairs of cards that :func:`relay` joins.

``python -m hpcdl.launch.testbed_inside GROUPS COMMAND...``, with the beginning of the paths of control groups, and
the plan in the environment: :mod:`hpcdl.launch.testbed`.
"""

import fcntl
import json
import math
import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from select import select
from threading import Thread
from time import monotonic
from typing import Final

from hpcdl.launch.testbed import DEVICE, INTERFACE, TESTBED, Plan, command_path, launcher_settings


def card(name: str) -> int:
    """Return the file descriptor of a new TAP card, with sums and cuts of TCP left to others."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    # TUNSETIFF: TAP, NO_PI, VNET_HDR; TUNSETOFFLOAD: CSUM, TSO4, TSO6
    fcntl.ioctl(descriptor, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x0002 | 0x1000 | 0x4000))
    fcntl.ioctl(descriptor, 0x400454D0, 0x01 | 0x02 | 0x04)
    return descriptor


def relay(cards: Mapping[int, int], seconds: float) -> None:
    """Pass frames between pairs of cards, each after half of ``seconds``, for ever: hosts are two pairs apart.

    For kernels without netem. TCP's frames pass uncut, with a header that says how to cut them (tuntap.rst).
    """
    peers = {**cards, **{peer: card for card, peer in cards.items()}}
    waiting = deque[tuple[float, int, bytes]]()
    while True:
        readable, _, _ = select(list(peers), [], [], max(0.0, waiting[0][0] - monotonic()) if waiting else None)
        for source in readable:
            with suppress(OSError):  # no more frames, or a card that is down or full, which loses one
                while frame := os.read(source, 1 << 17):
                    waiting.append((monotonic() + seconds / 2, peers[source], frame))
        while waiting and waiting[0][0] <= monotonic():
            with suppress(OSError):
                os.write(*waiting.popleft()[1:])


FOLDER: Final = Path("/dev/shm")  # noqa: S108 - a new tmpfs in our mounts, removed when this process ends
NETWORK: Final = "10.77.0"
SECOND: Final = "switch2"
HEAD: Final = f"{NETWORK}.254"
"""Address of the command's card, the bridge."""
NEW_HOST: Final = ("unshare", "--net", "--uts", "--ipc", "--mount")
"""Command prefix: namespaces of a host; processes and files are shared."""

HOST: Final = f"""
set -e
echo "$1" >/proc/sys/kernel/hostname
mount -t sysfs sysfs /sys
mount --rbind {FOLDER}/cgroup /sys/fs/cgroup
ip link set lo up
echo ready
read -r _
ip address add "$2" dev {INTERFACE}
ip link set {INTERFACE} up
ip link set {INTERFACE} gso_max_size "$4"
tc qdisc add dev {INTERFACE} $3
# every kernel has it; BBR would take bursts of the token bucket for the rate
echo reno >/proc/sys/net/ipv4/tcp_congestion_control
# A library's short answers wait behind unsent bytes in the stream; too many make the two directions of an exchange
# alternate. They must last until the rank, which shares its core, runs again.
echo 131072 >/proc/sys/net/ipv4/tcp_notsent_lowat
# answers of other connections wait behind a socket's bytes in the queue of its link
echo 32768 >/proc/sys/net/ipv4/tcp_limit_output_bytes
echo 0 >/proc/sys/net/ipv4/tcp_slow_start_after_idle
echo ready
exec sleep infinity
"""
"""Script of a host: set its name, mount its /sys, wait for its link, set its address and limits."""

AGENT: Final = f"""#!/bin/sh
# ssh for emulated hosts: ssh HOST [COMMAND...]
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
pid=$(cat "{FOLDER}/hosts/$1" 2>/dev/null) || {{ echo "ssh: no emulated host '$1'" >&2; exit 255; }}
group="{FOLDER}/groups/$1"
cores="{FOLDER}/cores/$1"
shift
if [ -e "$group" ]; then echo 0 >"$(cat "$group")/cgroup.procs"; fi
if [ -e "$cores" ]; then taskset --pid --cpu-list "$(cat "$cores")" $$ >/dev/null; fi
exec nsenter --target "$pid" --net --uts --ipc --mount \\
    sh -c 'cd "$0" && eval "$1"' "$PWD" "${{*:-exec ${{SHELL:-sh}}}}"
"""
"""Script by which launchers, and users, run commands on a host."""


class SetUpError(Exception):
    """A program that builds the testbed failed; one line."""


def main(plan: Plan, groups: str, command: Sequence[str]) -> int:
    """Run ``command`` among the hosts of ``plan``; return its exit code.

    The code is 128 + n after signal n, 126 if the command cannot be started, 1 if the hosts cannot be created.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)  # the terminal's is for the command only
    try:
        _files(plan)
        _hosts(plan)
        for host, cores in plan.slow_cpu.items():
            _limit_group(group := Path(f"{groups}-{host}"), cores)
            (FOLDER / "groups" / host).write_text(str(group))
        if plan.latency:
            by = "a relay in user space, as this kernel has no netem" if plan.relayed else "the kernel (netem)"
            print(f"hpcdl: testbed: {plan.latency * 1e3:g} ms from host to host, by {by}", file=sys.stderr)
    except SetUpError as error:
        print(f"hpcdl: testbed: {error}", file=sys.stderr)
        return 1
    environment = {
        **os.environ,
        **launcher_settings(FOLDER / "bin/ssh", FOLDER / "hosts.mpich", FOLDER / "hosts.openmpi"),
        "PATH": os.pathsep.join([f"{FOLDER}/bin", command_path()]),
        # launchers name folders by host and process number, which other testbeds have too
        "TMPDIR": str(FOLDER / "temporary"),
    }
    # Python ignores the first two, and this process the third; the command must not inherit that
    unignored = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR1]
    # posix_spawnp searches this process's PATH, not the one it passes on
    os.environ["PATH"] = environment["PATH"]
    try:
        process = os.posix_spawnp(command[0], list(command), environment, setsigdef=unignored)
    except OSError as error:
        print(f"hpcdl: testbed: COMMAND {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 126
    while True:  # the first process of a namespace must also reap orphans
        ended, status = os.wait()
        if ended == process:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _files(plan: Plan) -> None:
    _do("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(FOLDER))
    for name in ("bin", "hosts", "groups", "cores", "temporary", "cgroup"):
        (FOLDER / name).mkdir()
    (FOLDER / "temporary").chmod(0o1777)
    _do("mount", "--rbind", "/sys/fs/cgroup", f"{FOLDER}/cgroup")  # hosts mount their own /sys over it
    agent = FOLDER / "bin/ssh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    names = list(plan.bytes_per_second)
    (FOLDER / "hosts.mpich").write_text("".join(f"{name}:1\n" for name in names))
    (FOLDER / "hosts.openmpi").write_text("".join(f"{name} slots=1\n" for name in names))
    cores = sorted(os.sched_getaffinity(0))
    for number, name in enumerate(names if plan.hosts <= len(cores) else ()):  # each host has cores of its own
        (FOLDER / "cores" / name).write_text(",".join(map(str, cores[number :: plan.hosts])))
    hosts_file = Path("/etc/hosts")
    if hosts_file.exists():
        lines = [f"{NETWORK}.{number} {name}\n" for number, name in enumerate(names, 1)]
        (FOLDER / "etc-hosts").write_text("".join([*lines, hosts_file.read_text()]))
        _do("mount", "--bind", f"{FOLDER}/etc-hosts", str(hosts_file))


def _hosts(plan: Plan) -> None:
    # the bridge is also the command's card; it has the hosts' card name, because Hydra uses one name on all hosts
    _do("ip", "-batch", "-", input=f"link set lo up\nlink add {INTERFACE} type bridge\nlink set {INTERFACE} up\n"
        f"address add {HEAD}/24 dev {INTERFACE}\n")  # fmt: skip
    bridges = [INTERFACE] * plan.hosts
    narrowest = math.inf
    if plan.trunk:
        bridges[-(plan.hosts // 2) :] = [SECOND] * (plan.hosts // 2)
        narrowest = plan.trunk_bytes_per_second
        _do("ip", "-batch", "-", input=f"link add {SECOND} type bridge\nlink set {SECOND} up\n"
            f"link add trunk1 type veth peer name trunk2\nlink set trunk1 master {INTERFACE} up\n"
            f"link set trunk2 master {SECOND} up\n")  # fmt: skip
        limit = _limit(plan.trunk_bytes_per_second)
        _do("tc", "-batch", "-", input=f"qdisc add dev trunk1 {limit}\nqdisc add dev trunk2 {limit}\n")
    hosts = []
    for number, (name, rate) in enumerate(plan.bytes_per_second.items(), 1):
        # at most Linux's limit, and 0.9 of a burst, without headers: the kernel would cut longer packets, which on
        # two cores halves the rate of eight hosts at 200mbit
        largest = min(65536, round(0.9 * _burst(min(rate, narrowest))))
        arguments = [name, f"{NETWORK}.{number}/24", _limit(rate), str(largest)]
        host = subprocess.Popen(
            [*NEW_HOST, "sh", "-c", HOST, "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a terminal's signals to the command's group must not reach hosts
        )
        (FOLDER / "hosts" / name).write_text(str(host.pid))
        hosts.append(host)
    links, limits, cards = [], [], {}
    parent = "parent 1:1" if plan.latency and not plan.relayed else "root"
    for host, bridge, (name, rate) in zip(hosts, bridges, plan.bytes_per_second.items(), strict=True):
        _ready(host, name)
        if plan.relayed:
            cards[card(name)] = card(f"{name}-link")
            links.append(f"link set {name}-link netns {host.pid} name {INTERFACE}\n")
        else:
            links.append(f"link add {name} type veth peer name {INTERFACE} netns {host.pid}\n")
        links.append(f"link set {name} master {bridge} up\n")
        if parent != "root":  # netem holds the packets of a second at 1gbit
            limits.append(f"qdisc add dev {name} root handle 1: netem delay {plan.latency:f}s limit 100000\n")
        limits.append(f"qdisc add dev {name} {_limit(rate, parent)}\n")
    if cards:
        Thread(target=relay, args=(cards, plan.latency), daemon=True).start()
    _do("ip", "-batch", "-", input="".join(links))
    _do("tc", "-batch", "-", input="".join(limits))
    for host, name in zip(hosts, plan.bytes_per_second, strict=True):
        assert host.stdin
        host.stdin.write("\n")
        host.stdin.close()
        _ready(host, name)


QUOTA_PERIOD: Final = 5000
"""Microseconds in which a group may use its share of CPU time: short, so that each measurement is slowed."""


def _limit_group(group: Path, cores: float) -> None:
    """Make a control group whose processes may use ``cores`` cores together. Raises SetUpError."""
    quota = round(cores * QUOTA_PERIOD)
    try:
        if group.parent.name == "cpu":
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group.parent / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
            (group / "cpu.max").write_text(f"{quota} {QUOTA_PERIOD}")
    except OSError as error:
        raise SetUpError(f"{error.filename}: {error.strerror}: no limit of CPU time for {group.name}") from None


def _limit(rate: float, parent: str = "root") -> str:
    """Return arguments of ``tc qdisc add``: a token bucket of ``rate`` bytes per second (tc-tbf(8)).

    Packets that would wait longer than 100 ms are dropped, as in a switch's buffer.
    """
    return f"{parent} tbf rate {rate * 8}bit burst {_burst(rate)} latency 100ms"


def _burst(rate: float) -> int:
    """Return the burst (bytes): 1 ms at the full rate, at least three packets.

    The timer limits shorter bursts: 16 us of 1gbit gave 430 Mbit/s, 1 ms gives 950 Mbit/s. Longer bursts exempt
    short messages from the limit.
    """
    return max(5000, round(rate * 1e-3))


def _ready(host: subprocess.Popen[str], name: str) -> None:
    assert host.stdout
    answer = host.stdout.readline().strip()
    if answer != "ready":
        raise SetUpError(f"{name}: {answer or 'did not start'}")


def _do(*command: str, input: str | None = None) -> None:  # noqa: A002 - subprocess's name
    done = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetUpError(f"{' '.join(command)}: {(done.stderr.strip() or 'failed').splitlines()[0]}")


if __name__ == "__main__":
    sys.exit(main(Plan(**json.loads(os.environ[TESTBED])), sys.argv[1], sys.argv[2:]))
