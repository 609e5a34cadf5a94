"""The first process of a testbed's namespaces: builds the hosts, runs the command, buries the dead.

    command, mpirun     host1       host2             each host: a process that sleeps in namespaces of
         eth0           eth0        eth0              its own (network, names, mounts, IPC)
          |              | rate      | rate           and a pair of virtual cards, limited at either end
    ------+--------------+-----------+------ bridge   so that sending and receiving both have the rate

``python -m hpcdl.launch.testbed_inside PIPE PLAN COMMAND...``; see :mod:`hpcdl.launch.testbed`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.launch.testbed import Plan, command_path
from hpcdl.launch.testbed_settings import INTERFACE, TESTBED, launcher_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - in our mounts a file system of our own, which dies with us
NETWORK: Final = "10.77.0"
HEAD: Final = f"{NETWORK}.254"
"""Address of the command's end of the bridge."""

LEAST_BURST: Final = 5000
"""Bytes that may pass at once, at least: three packets."""
BURST_SECONDS: Final = 1e-3
"""What may pass at once, as time at the full rate. Less, and timers are late for the next packet: 16 us of
1gbit reached 430 Mbit/s, 1 ms 950. More, and messages shorter than this pass as if there were no limit."""
QUEUE: Final = "100ms"
"""Packets that would wait for longer are dropped, as a switch's buffer would."""

MOST_AT_ONCE: Final = 65536
"""Bytes that TCP hands to a card as one packet, for the card to cut, at most: Linux's own limit."""
CUT: Final = 0.9
"""The same as a share of the burst, headers being counted apart. What is longer than the burst the kernel cuts
into frames before it counts them, and on two cores those of eight hosts at 200mbit took both: half the rate."""
UNSENT: Final = 131072
"""Bytes that a socket holds beyond what is on its way: a library's short answers wait behind them in the stream,
and behind megabytes the two directions of an exchange take turns. But they must last until the rank, which shares
its core with others, looks again."""
QUEUED: Final = 32768
"""Bytes that a socket may have in its link's queue at once: answers of the host's other connections wait behind
those. With 128 KiB a ring under Open MPI on 16 hosts at 100mbit, which asks each time, took a sixth longer."""
CONGESTION: Final = "reno"
"""Every kernel has it and namespaces may choose it; BBR takes what bursts through a token bucket for the rate."""

OWN: Final = ("unshare", "--net", "--uts", "--ipc", "--mount")
"""What a host has of its own; processes and files are everybody's."""

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
echo {CONGESTION} >/proc/sys/net/ipv4/tcp_congestion_control
echo {UNSENT} >/proc/sys/net/ipv4/tcp_notsent_lowat
echo {QUEUED} >/proc/sys/net/ipv4/tcp_limit_output_bytes
echo 0 >/proc/sys/net/ipv4/tcp_slow_start_after_idle
echo ready
exec sleep infinity
"""
"""What a host does: take its name, see its own cards in /sys, wait for its link, take its address."""

AGENT: Final = f"""#!/bin/sh
# ssh for the emulated hosts: ssh HOST [COMMAND...]
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
pid=$(cat "{FOLDER}/hosts/$1" 2>/dev/null) || {{ echo "ssh: there is no emulated host '$1'" >&2; exit 255; }}
shift
exec nsenter --target "$pid" --net --uts --ipc --mount \\
    sh -c 'cd "$0" && eval "$1"' "$PWD" "${{*:-exec ${{SHELL:-sh}}}}"
"""
"""How launchers, and users, enter a host."""


class SetUpError(Exception):
    """A program that builds the testbed failed; one line."""


def main(pipe: int, plan: Plan, command: Sequence[str]) -> int:
    """Run ``command`` among the hosts of ``plan``; its exit code.

    It is 128 + n after signal n, 126 if the command cannot be started, 1 if the hosts could not be made.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)  # a terminal's is for the command alone
    told = _Told(pipe)
    threading.Thread(target=told.listen, daemon=True).start()
    try:
        _files(plan)
        _hosts(plan)
    except SetUpError as error:
        print(f"hpcdl: testbed: {error}", file=sys.stderr)
        return 1
    environment = _environment(plan)
    # Python ignores these two, and a command must not inherit it
    unignored = [signal.SIGPIPE, signal.SIGXFSZ]
    # posix_spawnp looks along our PATH, not along the one it hands on
    os.environ["PATH"] = environment["PATH"]
    try:
        told.command = os.posix_spawnp(command[0], list(command), environment, setsigdef=unignored)
    except OSError as error:
        print(f"hpcdl: testbed: COMMAND {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 126
    while True:  # orphans of the testbed are ours to wait for as well
        ended, status = os.wait()
        if ended == told.command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


class _Told:
    """What comes through the pipe: signals for the command, a byte each; and the end of it, which is ours."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.command = 0
        os.set_inheritable(pipe, False)

    def listen(self) -> None:
        while (number := os.read(self.pipe, 1)) and self.command:
            os.kill(self.command, number[0])
        # not sys.exit: this is a thread, and the kernel tidies
        os._exit(128 + (number[0] if number else signal.SIGKILL))


def _environment(plan: Plan) -> dict[str, str]:
    told = json.dumps({name: getattr(plan, name) for name in Plan.__dataclass_fields__})
    return {
        **os.environ,
        **launcher_settings(FOLDER / "bin/ssh", FOLDER / "hosts.mpich", FOLDER / "hosts.openmpi"),
        "PATH": os.pathsep.join([f"{FOLDER}/bin", command_path()]),
        # launchers name their folders by host and process, which another testbed has too
        "TMPDIR": str(FOLDER / "temporary"),
        TESTBED: told,
    }


def _files(plan: Plan) -> None:
    """File systems and files that only the testbed sees."""
    _do("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(FOLDER))
    for name in ("bin", "hosts", "temporary", "cgroup"):
        (FOLDER / name).mkdir()
    (FOLDER / "temporary").chmod(0o1777)
    _do("mount", "--rbind", "/sys/fs/cgroup", f"{FOLDER}/cgroup")  # hosts put their own /sys above it
    agent = FOLDER / "bin/ssh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    names = list(plan.bytes_per_second)
    (FOLDER / "hosts.mpich").write_text("".join(f"{name}:1\n" for name in names))
    (FOLDER / "hosts.openmpi").write_text("".join(f"{name} slots=1\n" for name in names))
    known = Path("/etc/hosts")
    if known.exists():
        lines = [f"{NETWORK}.{number} {name}\n" for number, name in enumerate(names, 1)]
        (FOLDER / "etc-hosts").write_text("".join([*lines, known.read_text()]))
        _do("mount", "--bind", f"{FOLDER}/etc-hosts", str(known))


def _hosts(plan: Plan) -> None:
    """The bridge; a process for every host; its link."""
    # the bridge is the command's own card too, named as the hosts' because Hydra is told of one name for all
    _do("ip", "-batch", "-", input=f"link set lo up\nlink add {INTERFACE} type bridge\nlink set {INTERFACE} up\n"
        f"address add {HEAD}/24 dev {INTERFACE}\n")  # fmt: skip
    hosts = []
    for number, (name, rate) in enumerate(plan.bytes_per_second.items(), 1):
        told = [name, f"{NETWORK}.{number}/24", _limit(rate), str(_at_once(rate))]
        host = subprocess.Popen(
            [*OWN, "sh", "-c", HOST, "sh", *told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # what a terminal says to the command's group is not for it
        )
        (FOLDER / "hosts" / name).write_text(str(host.pid))
        hosts.append(host)
    links, limits = [], []
    for host, (name, rate) in zip(hosts, plan.bytes_per_second.items(), strict=True):
        _ready(host, name)
        links += [
            f"link add {name} type veth peer name {INTERFACE} netns {host.pid}\n",
            f"link set {name} master {INTERFACE} up\n",
        ]
        limits.append(f"qdisc add dev {name} {_limit(rate)}\n")
    _do("ip", "-batch", "-", input="".join(links))
    _do("tc", "-batch", "-", input="".join(limits))
    for host, name in zip(hosts, plan.bytes_per_second, strict=True):
        assert host.stdin
        host.stdin.write("\n")
        host.stdin.close()
        _ready(host, name)


def _limit(rate: int) -> str:
    """Arguments of ``tc qdisc add``: a token bucket of ``rate`` bytes per second (tc-tbf(8))."""
    return f"root tbf rate {rate * 8}bit burst {_burst(rate)} latency {QUEUE}"


def _burst(rate: int) -> int:
    return max(LEAST_BURST, round(rate * BURST_SECONDS))


def _at_once(rate: int) -> int:
    """The longest packet that passes a link of ``rate`` bytes per second uncut, in bytes."""
    return min(MOST_AT_ONCE, round(CUT * _burst(rate)))


def _ready(host: subprocess.Popen[str], name: str) -> None:
    assert host.stdout
    said = host.stdout.readline().strip()
    if said != "ready":
        raise SetUpError(f"{name}: {said or 'did not start'}")


def _do(*command: str, input: str | None = None) -> None:  # noqa: A002 - subprocess's name
    done = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetUpError(f"{' '.join(command)}: {(done.stderr.strip() or 'failed').splitlines()[0]}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Plan(**json.loads(sys.argv[2])), sys.argv[3:]))
