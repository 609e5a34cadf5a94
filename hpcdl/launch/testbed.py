"""An emulated cluster on one Linux machine: hosts are namespaces, their links are limited by the kernel.

Nothing is made that could be left behind. The whole testbed lives in namespaces of its own (network, mounts,
processes), in which :mod:`hpcdl.launch.testbed_inside` is the first process. When that ends, for whatever
reason, the kernel kills every process in there, and bridge, links, mounts and files go with the last of them. It
ends with the command, and at once when the pipe from here closes, as it does even if we are killed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_HOSTS: Final = 64
LEAST: Final = 12_500
MOST: Final = 12_500_000_000
"""Bytes per second that a link may have: 100kbit to 100gbit. Below are forgotten units: 200 is 200 bit/s."""
GRACE: Final = 10.0
"""Seconds that a command has to end in when it was told to."""

PACKAGES: Final = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""Programs that are needed, and Debian's packages that have them."""
APART: Final = (*("unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"),)
"""In namespaces of their own; mounts are private by default."""

PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING: Final = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_FROM_KERNEL: Final = 0x80
"""SI_KERNEL, sigaction(2): a signal from the terminal, which has told its whole foreground group."""

_TRY_RATE: Final = 'tc qdisc add dev lo root tbf rate "$0" burst 5000 latency 100ms && tc -j qdisc show dev lo'


class NoTestbed(Exception):  # noqa: N818 - says what is the matter
    """The testbed that was asked for cannot be; one line."""


@dataclass(frozen=True)
class Plan:
    """What is emulated: ``hosts`` hosts, host1 and on, behind links of ``rate``, some of them slower.

    ``rate`` and the values of ``slow``, which is by host, are as the user and ``tc`` write them;
    ``bytes_per_second`` has every host's, as ``tc`` reads it, the same in both directions.
    """

    hosts: int
    rate: str
    slow: Mapping[str, str]
    bytes_per_second: Mapping[str, int]


def plan(hosts: int, rate: str, slow: Sequence[str] = ()) -> Plan:
    """Check what was asked for, and that this machine can do it; each of ``slow`` is HOST:RATE.

    Starts ``tc`` in a network namespace of its own to see what it thinks of the rates. Raises NoTestbed.
    """
    if not 1 <= hosts <= MOST_HOSTS:
        raise NoTestbed(f"--hosts {hosts}: must be from 1 to {MOST_HOSTS}")
    names = [f"host{number}" for number in range(1, hosts + 1)]
    slower: dict[str, str] = {}
    for given in slow:
        host, colon, its_rate = given.partition(":")
        if not (host and colon and its_rate):
            raise NoTestbed(f"--slow {given}: write HOST:RATE, such as host1:50mbit")
        if host not in names:
            there = f"host1 to {names[-1]}" if hosts > 1 else "host1 only"
            raise NoTestbed(f"--slow {given}: there is no {host!r}; there is {there}")
        if host in slower:
            raise NoTestbed(f"--slow {given}: {host} has a rate already, {slower[host]}")
        slower[host] = its_rate
    _check_machine()
    usual = _bytes_per_second(rate, f"--rate {rate}")
    reduced = {host: _bytes_per_second(its_rate, f"--slow {host}:{its_rate}") for host, its_rate in slower.items()}
    return Plan(hosts, rate, slower, dict.fromkeys(names, usual) | reduced)


def _check_machine() -> None:
    if sys.platform != "linux":
        raise NoTestbed(f"testbed: needs network namespaces, which Linux has and {sys.platform} has not")
    if os.geteuid() != 0:
        raise NoTestbed("testbed: needs root, to make network namespaces")
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise NoTestbed(f"testbed: needs the program {program}: apt-get install {package}")


def _bytes_per_second(rate: str, option: str) -> int:
    """What ``tc`` takes ``rate`` for. Raises NoTestbed, as well if this root may not make namespaces."""
    tried = subprocess.run(
        [*APART, "sh", "-c", _TRY_RATE, rate],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if tried.returncode == 0:
        found = int(json.loads(tried.stdout)[0]["options"]["rate"])
        if not LEAST <= found <= MOST:
            raise NoTestbed(f"{option}: must be from 100kbit to 100gbit, and tc takes this for {8 * found} bit/s")
        return found
    said = (tried.stderr.strip() or "no output").splitlines()[0]
    if said.startswith("unshare:"):
        raise NoTestbed(f"testbed: namespaces cannot be made here: {said}")
    raise NoTestbed(f"{option}: tc does not take this rate, as it would 200mbit or 1gbit: {said}")


def command_path() -> str:
    """The PATH for the command: this Python's own programs come first, its mpirun and hpcdl among them."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def hold(planned: Plan, command: Sequence[str]) -> int:
    """Make the testbed, run ``command`` in it, remove everything; the exit code is the command's.

    As in a shell, the code is 128 + n for a command that signal n ended, and 1 if the testbed could not be made.
    Signals are passed on to the command, except what a terminal has told it already. After SIGINT, SIGTERM and
    SIGHUP it has 10 s, then it is killed with all that it started; after a terminal's Ctrl-C it may go on, as a
    debugger would. Raises NoTestbed if there is no such command.
    """
    if not command:
        raise NoTestbed("testbed: no COMMAND; write it behind --, such as -- hpcdl run SUITE.toml")
    if shutil.which(command[0], path=command_path()) is None:
        raise NoTestbed(f"testbed: COMMAND {command[0]!r}: there is no such program")
    theirs, ours = os.pipe()
    os.set_inheritable(theirs, True)
    inside = [sys.executable, "-m", "hpcdl.launch.testbed_inside", str(theirs), json.dumps(asdict(planned))]
    # blocked rather than handled, so that none comes too early and sigtimedwait says where it is from
    watched = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, *watched])
    try:
        child = os.posix_spawnp(APART[0], [*APART, *inside, *command], os.environ, setsigmask=before)
        os.close(theirs)
        return _wait(child, ours, [signal.SIGCHLD, *watched])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(child: int, pipe: int, watched: Sequence[signal.Signals]) -> int:
    """Pass signals on through ``pipe``, a byte each, until ``child`` has ended; returns its exit code."""
    deadline = math.inf
    while True:
        told = signal.sigtimedwait(watched, min(max(deadline - time.monotonic(), 0), 3600))
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() >= deadline:
            break
        if told is None or told.si_signo == signal.SIGCHLD or told.si_code == _FROM_KERNEL:
            continue
        if told.si_signo in ENDING:
            deadline = min(deadline, time.monotonic() + GRACE)
        with suppress(BrokenPipeError):  # it has just ended
            os.write(pipe, bytes([told.si_signo]))
    os.close(pipe)
    if not ended:
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
