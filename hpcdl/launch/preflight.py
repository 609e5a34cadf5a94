"""``hpcdl check``: check the machine before a run, one line per finding.

From a shell it checks this host and starts two ranks. Inside a job it checks all hosts and the ranks of the job.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Final

from hpcdl.launch.host_checks import Finding, host_checks
from hpcdl.launch.library import incompatibility, mismatch
from hpcdl.launch.mpi_checks import mpi_checks, oversubscription
from hpcdl.launch.mpi_probe import VARIABLES, Probe, Transports, probe
from hpcdl.launch.mpirun import NoLauncher, launch_environment, mpirun, python_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

START_LIMIT: Final = 60
"""Seconds in which two ranks must find each other."""
SHOWN: Final = 3
"""Hosts that a finding names, at most."""


def preflight() -> Iterator[Finding]:
    """Yield the findings one by one. Starts 2 ranks; writes 16 MiB to the current folder."""
    yield from _mpi()
    yield from host_checks()


def _mpi() -> Iterator[Finding]:
    try:
        launcher = mpirun()
    except NoLauncher as error:
        yield Finding("FAILED", "launcher", "no mpirun was found", str(error).partition(": ")[2])
        return
    yield Finding("ok", "launcher", str(launcher))
    other = "use the mpirun of the library that mpi4py was built for"
    try:
        ended = subprocess.run(
            python_command(2, ["-m", "hpcdl.launch.mpi_probe"]),
            env=launch_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Finding("FAILED", "MPI", f"two ranks did not find each other within {START_LIMIT} s", other)
        return
    answers = [line for line in ended.stdout.splitlines() if line.startswith('{"library"')]
    if ended.returncode or not answers:
        last = (ended.stderr.strip() or "no output").splitlines()[-1]
        yield Finding("FAILED", "MPI", f"two ranks ended with exit code {ended.returncode}: {last}", other)
        return
    fields = json.loads(answers[0])
    probed = Probe(**{**fields, "transports": Transports(*map(tuple, fields["transports"]))})
    if len(probed.hosts) == 2:
        yield from mpi_checks(probed)
    else:
        yield Finding("FAILED", "MPI", f"2 ranks started, but MPI sees {len(probed.hosts)}", other)


def preflight_of_job() -> list[Finding] | str:
    """Return the findings on rank 0, nothing on other ranks; one line if the launcher does not fit. Collective.

    Writes 16 MiB to the current folder on each host.
    """
    from hpcdl.launch.library import abort_on_error, load

    os.environ.update(VARIABLES)
    library = load()
    if complaint := incompatibility(os.environ, library):
        return complaint
    with abort_on_error():
        probed = probe(library, lambda: list(host_checks()))
    if probed is None:
        return []
    if complaint := mismatch(len(probed.hosts), os.environ, library.name):
        return complaint
    local = {host: findings for host, findings in zip(probed.hosts, probed.local, strict=True) if findings}
    return [*mpi_checks(probed), *oversubscription(probed), *of_hosts(local.items())]


def of_hosts(local: Iterable[tuple[str, list[Finding]]]) -> list[Finding]:
    """Return one finding for each subject and verdict: that of the first host, with the hosts' names."""
    hosts = dict(local)
    groups: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for host, findings in hosts.items():
        for finding in findings:
            groups.setdefault((finding.subject, finding.verdict), []).append((host, finding))
    shown = []
    for group in groups.values():
        names = [host for host, _ in group]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        where = "" if len(hosts) == 1 else f"{', '.join(names[:SHOWN])}{more}: "
        if len(names) == len(hosts) > 1:
            where = f"all {len(hosts)} hosts, such as {names[0]}: "
        first = group[0][1]
        shown.append(first._replace(detail=f"{where}{first.detail}"))
    return shown
