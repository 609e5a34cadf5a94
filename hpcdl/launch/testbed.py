"""Emulated cluster on one Linux machine: hosts are namespaces, and the kernel limits the rates of their links.

The testbed leaves nothing behind. It runs in separate namespaces (network, mounts, processes) whose first process
is :mod:`hpcdl.launch.testbed_inside`. When that process ends, the kernel kills all others and removes bridge,
links, mounts and files. It ends with the command, or when this process ends in any way.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

from hpcdl.launch import machine
from hpcdl.launch.process import LaunchError, child_preparation, if_killed
from hpcdl.registry import shortened
from hpcdl.trace.files import JsonMapping, JsonObject

MAX_HOSTS: Final = 64
MIN_RATE, MAX_RATE = 10**5, 10**11
"""Range of link rates (bit/s)."""
UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_RATE: Final = re.compile(r"(?i)([0-9]{1,12}(?:\.[0-9]{1,9})?) ?([kmgt]?)(bit(?:/s)?|b(?:yte)?(?:ps|/s))")
"""A number, its prefix, and a unit of bits or what may be one of bytes."""

PACKAGES: Final = {
    **dict.fromkeys(("ip", "tc"), "iproute2"),
    **dict.fromkeys(("unshare", "nsenter", "taskset"), "util-linux"),
}
"""Required programs and their Debian packages."""
NEW_NAMESPACES: Final = ("unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Command prefix: run in new namespaces; mounts are private by default."""


@dataclass(frozen=True)
class Plan:
    """Emulated cluster: hosts host1, host2, ... behind links of ``rate``, some of them slower.

    ``rate``, ``trunk`` and the values of ``slow``, by host, are texts such as ``100mbit``; ``bytes_per_second``
    has the rate of every host, equal in both directions. With ``trunk``, the first half of the hosts and the
    others are on two switches, which a link of this rate joins. Frames reach their host after ``latency``, in
    seconds, delayed by netem or, with ``relayed``, by :mod:`hpcdl.launch.testbed_inside`.
    """

    hosts: int
    rate: str
    slow: Mapping[str, str]
    bytes_per_second: Mapping[str, int]
    trunk: str = ""
    trunk_bytes_per_second: int = 0
    latency: float = 0.0
    relayed: bool = False
    slow_cpu: Mapping[str, float] = field(default_factory=dict)
    """Cores that all processes of a host may use together, by host; the others have no limit."""


def plan(
    hosts: int,
    rate: str,
    slow: Sequence[str] = (),
    trunk: str = "",
    delay: timedelta | None = None,
    slow_cpu: Sequence[str] = (),
) -> Plan:
    """Check the options and that this machine supports them; raises LaunchError.

    Each of ``slow`` is HOST:RATE, and each of ``slow_cpu`` HOST:CORES.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise LaunchError(f"--hosts {hosts}: must be from 1 to {MAX_HOSTS}")
    if trunk and hosts == 1:
        raise LaunchError(f"--uplink {trunk}: one host is on one switch; --hosts must be at least 2")
    usual = bits_of(rate, f"--rate {rate}")
    rates = {f"host{number}": usual for number in range(1, hosts + 1)}
    slower: dict[str, str] = {}
    for entry, host, its_rate in _of_hosts("--slow", slow, rates, "RATE, such as host1:50mbit"):
        rates[host] = bits_of(its_rate, entry)
        slower[host] = _spelled(rates[host])
    quotas: dict[str, float] = {}
    for entry, host, cores in _of_hosts("--slow-cpu", slow_cpu, rates, "CORES, such as host1:0.8"):
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", cores) or float(cores) < 0.01:
            raise LaunchError(f"{entry}: must be a number of cores from 0.01 on, such as 0.8, not {cores!r}")
        quotas[host] = float(cores)
    if quotas and cpu_controller() is None:
        raise LaunchError("--slow-cpu: this machine has no cpu controller of control groups that can be written")
    joined = bits_of(trunk, f"--uplink {trunk}") if trunk else 0
    latency = 0.0 if delay is None else delay.total_seconds()
    if latency > 10:
        raise LaunchError(f"--latency: must be at most 10 s, not {latency:g} s")
    if sys.platform != "linux":
        raise LaunchError(f"testbed: needs Linux (network namespaces), not {sys.platform}")
    if os.geteuid() != 0:
        raise LaunchError("testbed: needs root to create network namespaces")
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise LaunchError(f"testbed: needs the program {program}: apt-get install {package}")
    if obstacle := _obstacle("tbf", "rate", "1mbit", "burst", "5000", "latency", "100ms"):
        raise LaunchError(f"testbed: a link with a limited rate cannot be created here: {obstacle}")
    relayed = bool(latency and _obstacle("netem", "delay", "1ms"))
    if relayed and not DEVICE.exists():
        raise LaunchError(f"--latency: the kernel has neither netem nor {DEVICE}; load sch_netem or tun")
    per_second = {host: bits // 8 for host, bits in rates.items()}
    spelled = _spelled(joined) if joined else ""
    return Plan(hosts, _spelled(usual), slower, per_second, spelled, joined // 8, latency, relayed, quotas)


def _of_hosts(
    option: str, entries: Sequence[str], hosts: Collection[str], form: str
) -> Iterator[tuple[str, str, str]]:
    """Yield option, host and value of each entry HOST:VALUE. Raises LaunchError."""
    seen = dict[str, str]()
    for entry in entries:
        host, colon, value = entry.partition(":")
        if not (host and colon and value):
            raise LaunchError(f"{option} {entry}: write HOST:{form}")
        if host not in hosts:
            available = f"host1 to host{len(hosts)}" if len(hosts) > 1 else "host1 only"
            raise LaunchError(f"{option} {entry}: there is no {host!r}; available: {available}")
        if host in seen:
            raise LaunchError(f"{option} {entry}: {host} already has {seen[host]}")
        seen[host] = value
        yield f"{option} {entry}", host, value


REMOVAL: Final = 'for _ in 1 2 3 4 5 6 7 8 9; do set -- "$0"-*; [ -d "$1" ] || break; rmdir "$@" || sleep 1; done'
"""Shell script that removes the control groups of a testbed, whose processes may still be ending."""


def cpu_controller(root: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """Return the folder in which control groups with a limit of CPU time can be made; None if there is none."""
    folder = root / "cpu" if (root / "cpu/cpu.shares").exists() else root
    second = "cpu" in machine.text(root / "cgroup.controllers").split()
    return folder if (second or folder != root) and os.access(folder, os.W_OK) else None


def bits_of(text: str, option: str, most: int = MAX_RATE) -> int:
    """Return a rate (bit/s), written 200mbit or 2.5 Gbit/s. Raises LaunchError, which names the remedy.

    mbps is refused: megabytes per second to tc, megabits to others.
    """
    rate = _RATE.fullmatch(text.strip())
    if rate is None:
        raise LaunchError(f"{option}: must be a rate with a unit, such as 200mbit or 1gbit")
    number, prefix, unit = rate.groups()
    bits = round(float(number) * UNITS[prefix.lower()])
    if "bit" not in unit.lower():
        remedy = f"write {number}{prefix.lower()}bit, or {_spelled(8 * bits)} for bytes"
        raise LaunchError(f"{option}: bits or bytes? {remedy}")
    if not MIN_RATE <= bits <= most:
        limits = f"{bit_rate(MIN_RATE)} to {bit_rate(most)}"
        raise LaunchError(f"{option}: must be from {limits}, not {bit_rate(bits)}")
    return bits


def _spelled(bits: int) -> str:
    """Return a rate as an option has it, 100mbit: testbeds of one rate have one description."""
    return bit_rate(bits).removesuffix("/s").replace(" ", "").lower()


def bit_rate(bits: float) -> str:
    """Return a rate (bit/s) with its unit: 100 Mbit/s."""
    prefix = next(prefix for prefix in reversed(UNITS) if bits >= UNITS[prefix] or not prefix)
    return f"{bits / UNITS[prefix]:.12g} {prefix if prefix == 'k' else prefix.upper()}bit/s"


def usual_rate(testbed: JsonMapping) -> str:
    """Return the rate of a recorded testbed's links but slow ones, by its number: older texts may say mbps."""
    rates = testbed["bytes_per_second"]
    return next((bit_rate(8 * rates[host]) for host in rates if host not in testbed["slow"]), str(testbed["rate"]))


def _obstacle(*queue: str) -> str:
    """Return why a queue of ``tc`` cannot be added in a new network namespace; empty if it can."""
    command = [*NEW_NAMESPACES, "tc", "qdisc", "add", "dev", "lo", "root", *queue]
    tried = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
    )
    return (tried.stderr.strip() or f"tc ends with {tried.returncode}").splitlines()[0] if tried.returncode else ""


def command_path() -> str:
    """Return the PATH for the command; this Python's programs, such as mpirun and hpcdl, come first."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def run_in_testbed(planned: Plan, command: Sequence[str]) -> int:
    """Build the testbed, run ``command`` in it, remove everything; return the command's exit code.

    As in a shell, the code is 128 + n if signal n ended the command; it is 1 if the testbed could not be built.
    After a terminal's Ctrl-C, which the command receives too, the command may continue, as a debugger does. Any
    other signal that ends this process kills the command. Raises LaunchError if there is no such command.
    """
    if not command:
        raise LaunchError("testbed: no COMMAND; write it after --, such as -- hpcdl run SUITE.toml")
    if shutil.which(command[0], path=command_path()) is None:
        raise LaunchError(f"testbed: COMMAND {command[0]!r}: no such program")
    # -P: this runs as root, and other users may write to the current folder
    groups = f"{cpu_controller()}/hpcdl-testbed-{uuid4().hex[:8]}"
    removal = "/bin/sh", "-c", REMOVAL, groups
    inside = [*NEW_NAMESPACES, sys.executable, "-P", "-m", "hpcdl.launch.testbed_inside", groups, *command]
    described = {**os.environ, TESTBED: json.dumps(asdict(planned))}
    ends_with_parent = child_preparation(signal.SIGKILL)
    with (
        if_killed(*removal) if planned.slow_cpu else nullcontext(),
        subprocess.Popen(inside, env=described, preexec_fn=ends_with_parent) as child,  # noqa: PLW1509 - this process has no other thread
    ):
        while True:
            with suppress(KeyboardInterrupt):
                code = child.wait()
                if planned.slow_cpu:
                    subprocess.run(removal, check=False, stderr=subprocess.DEVNULL)
                return code if code >= 0 else 128 - code


TESTBED: Final = "HPCDL_TESTBED"
"""Description of the testbed as JSON; set in a testbed."""

DEVICE: Final = Path("/dev/net/tun")
INTERFACE: Final = "eth0"


def emulated(environment: Mapping[str, str] = os.environ) -> JsonObject | None:
    """Return the :class:`Plan` of this process's testbed; None outside. Raises LaunchError for a wrong one."""
    text = environment.get(TESTBED)
    if not text:
        return None
    kinds = {"hosts": int, "rate": str, "slow": dict, "bytes_per_second": dict}
    try:
        plan: JsonObject | None = json.loads(text)
    except (ValueError, RecursionError):
        plan = None
    if not isinstance(plan, dict) or any(not isinstance(plan.get(key), kind) for key, kind in kinds.items()):
        raise LaunchError(f"{TESTBED}: {shortened(text)} describes no testbed; hpcdl testbed sets it: unset it")
    return plan


def launcher_settings(agent: Path, mpich_hosts: Path, openmpi_hosts: Path) -> dict[str, str]:
    """Return variables that make any ``mpirun`` start ranks on the emulated hosts, with either MPI library.

    Ranks are placed on hosts in turn; all messages use TCP on the emulated links. ``agent`` replaces ssh; the
    files list the hosts in each library's format. Sources: parameter lists of Hydra and PRRTE.
    """
    hydra = {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "HYDRA_HOST_FILE": str(mpich_hosts),
        "HYDRA_IFACE": INTERFACE,
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": INTERFACE,
        # long messages in pieces, so that answers of the other direction pass between them
        "UCX_RNDV_SCHEME": "am",
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "10",  # ranks of all hosts share the machine's cores
        "MPIR_CVAR_NOLOCAL": "1",  # ranks on one emulated host use the network stack too
    }
    prrte = {
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "PRTE_MCA_prte_default_hostfile": str(openmpi_hosts),
        "PRTE_MCA_prte_if_include": INTERFACE,
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        # with binding, the first rank of every host would use core 0
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": INTERFACE,
        # pieces as with UCX: all default flags except put, which sends a message as one piece; shorter pieces
        "OMPI_MCA_btl_tcp_flags": "send,inplace,need-ack,need-csum,hetero-rdma",
        "OMPI_MCA_btl_tcp_max_send_size": "65536",
        # no handshake for 64 KiB and a header: each round of a ring would wait for its answer
        "OMPI_MCA_btl_tcp_eager_limit": "131072",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks of all hosts share the machine's cores
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return hydra | prrte
