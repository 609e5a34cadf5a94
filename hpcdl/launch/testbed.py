"""Emulated cluster on one Linux machine: hosts are namespaces, and the kernel limits the rates of their links.

The testbed leaves nothing behind. It runs in separate namespaces (network, mounts, processes) whose first process
is :mod:`hpcdl.launch.testbed_inside`. When that process ends, the kernel kills all others and removes bridge,
links, mounts and files. It ends with the command, or when this process ends in any way.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from hpcdl.launch.process import child_preparation
from hpcdl.registry import shortened
from hpcdl.trace.files import JsonObject

MAX_HOSTS: Final = 64
MIN_RATE: Final = 12_500
MAX_RATE: Final = 12_500_000_000
"""Range of link rates (bytes/s): 100kbit to 100gbit. A rate without a unit is below: tc reads 200 as 200 bit/s."""

PACKAGES: Final = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""Required programs and their Debian packages."""
NEW_NAMESPACES: Final = (
    *("unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
"""Command prefix: run in new namespaces; mounts are private by default."""

_TRY_RATE: Final = 'tc qdisc add dev lo root tbf rate "$0" burst 5000 latency 100ms && tc -j qdisc show dev lo'


class NoTestbed(Exception):  # noqa: N818 - a state, not an error
    """The requested testbed is impossible; one line."""


@dataclass(frozen=True)
class Plan:
    """Emulated cluster: hosts host1, host2, ... behind links of ``rate``, some of them slower.

    ``rate`` and the values of ``slow``, by host, are texts as in ``tc``; ``bytes_per_second`` has the rate of
    every host as ``tc`` reads it, equal in both directions. With ``trunk``, the first half of the hosts and the
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


def plan(hosts: int, rate: str, slow: Sequence[str] = (), trunk: str = "", delay: timedelta | None = None) -> Plan:
    """Check the options and that this machine supports them; each of ``slow`` is HOST:RATE.

    Starts ``tc`` in a new network namespace to interpret the rates. Raises NoTestbed.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise NoTestbed(f"--hosts {hosts}: must be from 1 to {MAX_HOSTS}")
    if trunk and hosts == 1:
        raise NoTestbed(f"--trunk {trunk}: one host is on one switch; --hosts must be at least 2")
    names = [f"host{number}" for number in range(1, hosts + 1)]
    slower: dict[str, str] = {}
    for given in slow:
        host, colon, its_rate = given.partition(":")
        if not (host and colon and its_rate):
            raise NoTestbed(f"--slow {given}: write HOST:RATE, such as host1:50mbit")
        if host not in names:
            available = f"host1 to {names[-1]}" if hosts > 1 else "host1 only"
            raise NoTestbed(f"--slow {given}: there is no {host!r}; available: {available}")
        if host in slower:
            raise NoTestbed(f"--slow {given}: {host} already has the rate {slower[host]}")
        slower[host] = its_rate
    latency = 0.0 if delay is None else delay.total_seconds()
    if latency > 10:
        raise NoTestbed(f"--latency: must be at most 10 s, not {latency:g} s")
    if sys.platform != "linux":
        raise NoTestbed(f"testbed: needs Linux (network namespaces), not {sys.platform}")
    if os.geteuid() != 0:
        raise NoTestbed("testbed: needs root to create network namespaces")
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise NoTestbed(f"testbed: needs the program {program}: apt-get install {package}")
    usual = _bytes_per_second(rate, f"--rate {rate}")
    reduced = {host: _bytes_per_second(its_rate, f"--slow {host}:{its_rate}") for host, its_rate in slower.items()}
    joined = _bytes_per_second(trunk, f"--trunk {trunk}") if trunk else 0
    netem = [*NEW_NAMESPACES, "sh", "-c", "tc qdisc add dev lo root netem delay 1ms"]
    relayed = bool(latency) and subprocess.run(netem, capture_output=True, check=False).returncode != 0
    if relayed and not DEVICE.exists():
        raise NoTestbed(f"--latency: the kernel has neither netem nor {DEVICE}; load sch_netem or tun")
    return Plan(hosts, rate, slower, dict.fromkeys(names, usual) | reduced, trunk, joined, latency, relayed)


def _bytes_per_second(rate: str, option: str) -> int:
    """Return ``rate`` as ``tc`` reads it. Raises NoTestbed, also if namespaces cannot be created."""
    tried = subprocess.run(
        [*NEW_NAMESPACES, "sh", "-c", _TRY_RATE, rate],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if tried.returncode == 0:
        bits = int(json.loads(tried.stdout)[0]["options"]["rate"])
        if not MIN_RATE <= bits <= MAX_RATE:
            raise NoTestbed(f"{option}: must be from 100kbit to 100gbit, but tc reads it as {8 * bits} bit/s")
        return bits
    reason = (tried.stderr.strip() or "no output").splitlines()[0]
    if reason.startswith("unshare:"):
        raise NoTestbed(f"testbed: namespaces cannot be created here: {reason}")
    raise NoTestbed(f"{option}: tc does not accept this rate; write for example 200mbit or 1gbit: {reason}")


def command_path() -> str:
    """Return the PATH for the command; this Python's programs, such as mpirun and hpcdl, come first."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def run_in_testbed(planned: Plan, command: Sequence[str]) -> int:
    """Build the testbed, run ``command`` in it, remove everything; return the command's exit code.

    As in a shell, the code is 128 + n if signal n ended the command; it is 1 if the testbed could not be built.
    After a terminal's Ctrl-C, which the command receives too, the command may continue, as a debugger does. Any
    other signal that ends this process kills the command. Raises NoTestbed if there is no such command.
    """
    if not command:
        raise NoTestbed("testbed: no COMMAND; write it after --, such as -- hpcdl run SUITE.toml")
    if shutil.which(command[0], path=command_path()) is None:
        raise NoTestbed(f"testbed: COMMAND {command[0]!r}: no such program")
    # -P: this runs as root, and other users may write to the current folder
    inside = [sys.executable, "-P", "-m", "hpcdl.launch.testbed_inside", json.dumps(asdict(planned))]
    ends_with_parent = child_preparation(signal.SIGKILL)
    with subprocess.Popen([*NEW_NAMESPACES, *inside, *command], preexec_fn=ends_with_parent) as child:  # noqa: PLW1509 - this process has no other thread
        while True:
            with suppress(KeyboardInterrupt):
                code = child.wait()
                return code if code >= 0 else 128 - code


TESTBED: Final = "HPCDL_TESTBED"
"""Description of the testbed as JSON; set in a testbed."""

DEVICE: Final = Path("/dev/net/tun")
INTERFACE: Final = "eth0"


class TestbedError(Exception):
    """The environment's description of a testbed is invalid; one line."""


def emulated(environment: Mapping[str, str] = os.environ) -> JsonObject | None:
    """Return the :class:`hpcdl.launch.testbed.Plan` of this process's testbed; None outside a testbed.

    Raises TestbedError if the variable is invalid.
    """
    text = environment.get(TESTBED)
    if not text:
        return None
    try:
        plan: JsonObject | None = json.loads(text)
    except (ValueError, RecursionError):
        plan = None
    if not isinstance(plan, dict) or any(not isinstance(plan.get(key), kind) for key, kind in _PLAN.items()):
        raise TestbedError(
            f"{TESTBED}: {shortened(text)} describes no testbed; hpcdl testbed sets this variable: unset it"
        )
    return plan


_PLAN: Final = {"hosts": int, "rate": str, "slow": dict, "bytes_per_second": dict}


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
        # send messages of 64 KiB and a header without a handshake, whose answer each round of a ring would wait
        # for
        "OMPI_MCA_btl_tcp_eager_limit": "131072",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks of all hosts share the machine's cores
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return hydra | prrte
