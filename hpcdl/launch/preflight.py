"""``hpcdl check``: check the machine before a run, one line per finding.

From a shell it checks this host (cores, governor, clock, network, disk, GPU) and starts two ranks. Inside a job it
checks all hosts and the ranks of the job.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, Literal, NamedTuple

from hpcdl.launch import machine
from hpcdl.launch.counters import UNKNOWN, Counters
from hpcdl.launch.mpi_probe import VARIABLES, Probe, Transports, is_tcp, probe
from hpcdl.launch.mpirun import NoLauncher, launch_environment, mpirun, python_command
from hpcdl.launch.process import abort_on_error, batch_advice, check_launcher, check_size, load
from hpcdl.launch.testbed import emulated
from hpcdl.trace.files import JsonObject


class Finding(NamedTuple):
    """Result of one check."""

    verdict: Literal["ok", "unknown", "warning", "FAILED"]
    subject: str
    detail: str
    advice: str = ""
    """Advice; empty if the verdict is ``ok``."""


def judged(subject: str, detail: str, advice: str = "") -> Finding:
    """Return a finding that is a warning if there is advice."""
    return Finding("warning" if advice else "ok", subject, detail, advice)


WRITTEN: Final = 1 << 24
"""Bytes that are written to the disk."""


def host_checks() -> Iterator[Finding]:
    """Yield the findings one by one. Writes 16 MiB to the current folder."""
    yield cores()
    yield from slurm_tasks(os.environ, len(os.sched_getaffinity(0)))
    yield other_processes()
    yield governor()
    yield clock_source()
    yield disk(Path.cwd())
    yield from gpu()


def cores(root: Path = machine.ROOT) -> Finding:
    """Return the cores that ranks may use: fewer than the machine has if pinned or limited by a control group."""
    available = len(os.sched_getaffinity(0))
    quota = machine.cpu(root)["quota_cores"]
    limited = isinstance(quota, float) and quota < available
    limit = f"; the control group limits them to {quota:g}" if limited else ""
    detail = f"{available} of {os.cpu_count()} cores are available{limit}"
    few = "start no more ranks x threads than that, or ask for more cores" * bool(available == 1 or limit)
    return judged("cores", detail if few else f"{detail}; start at most so many ranks x threads", few)


def other_processes(counters: Counters | None = None, seconds: float = 1.0) -> Finding:
    """Return how many cores other processes and the hypervisor use now; watches the cores for ``seconds``."""
    counters = counters or Counters()
    begin = counters.sample()
    time.sleep(seconds)
    end = counters.sample()
    if UNKNOWN in {begin.busy_ns, end.busy_ns}:
        return Finding("unknown", "other processes", "this machine does not report it")
    passed = end.time_ns - begin.time_ns
    foreign = max(0, end.busy_ns - begin.busy_ns - (end.cpu_ns - begin.cpu_ns)) / passed
    stolen = max(0, end.steal_ns - begin.steal_ns) / passed
    detail = f"use {foreign:.1f} cores, and the hypervisor {stolen:.1f}; load {end.load:.1f}"
    advice = "wait until the machine is idle: else cases are flagged as disturbed, or their intervals are wide"
    return judged("other processes", detail, advice if max(foreign, stolen) >= 0.1 else "")


def governor(root: Path = machine.ROOT) -> Finding:
    """Return the frequency governor of the first processor."""
    governor = str(machine.cpu(root)["governor"])
    if governor == machine.UNKNOWN:
        return Finding("unknown", "CPU governor", "not reported, as on most virtual machines")
    advice = "cpupower frequency-set -g performance, or ask the administrator"
    return judged("CPU governor", governor, "" if governor == "performance" else advice)


def clock_source(root: Path = machine.ROOT) -> Finding:
    """Return the kernel's clock source; others than the processor's counter are slow and may drift."""
    value = machine.clock_source(root)
    is_counter = value in {"tsc", "arch_sys_counter", "timebase", "kvm-clock", machine.UNKNOWN}
    advice = "" if is_counter else "choose tsc: clocks of nodes then drift apart less and are read faster"
    return judged("clock source", value, advice)


def slurm_tasks(variables: Mapping[str, str], available: int) -> Iterator[Finding]:
    """Yield if a task of ``srun`` has the cores that ``sbatch --cpus-per-task`` asked for; nothing elsewhere."""
    if variables.get("SLURM_STEP_ID", "").isdecimal():
        cpus = int(variables.get("SLURM_CPUS_PER_TASK") or 1)
        detail = f"{available} of the {cpus} cores of --cpus-per-task are available to this task"
        advice = "srun --cpus-per-task=$SLURM_CPUS_PER_TASK: srun does not take it from sbatch"
        yield judged("Slurm tasks", detail, "" if available >= cpus else advice)


def disk(folder: Path) -> Finding:
    """Return how long 16 MiB take to reach the disk of ``folder``, and the free space."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            file.write(bytes(WRITTEN))
            file.flush()
            os.fsync(file.fileno())
            took = time.perf_counter() - began
    except OSError as error:
        advice = "run in a folder that you may write to, with free space"
        return Finding("FAILED", "disk", f"{folder}: {error.strerror}", advice)
    free = shutil.disk_usage(folder).free
    detail = f"{WRITTEN >> 20} MiB written and synchronised in {took:.2f} s, {free / 1e9:.0f} GB free"
    slow = "choose a faster file system for -o: each finished case is written and synchronised" * (took > 2)
    return judged("disk", detail, "remove files, or choose another file system for -o" if free < 1e9 else slow)


def gpu() -> Iterator[Finding]:
    """Yield the GPUs, whether cupy can use them, and whether the MPI library takes their pointers."""
    gpus = machine.entries(machine.gpu())
    if not gpus:
        yield judged("GPU", "no GPU; backends on the CPU are not affected")
        return
    yield judged("GPU", ", ".join(str(device["name"]) for device in gpus["devices"]))
    from hpcdl.nn.kernels.cupy.gpu import gpu_availability

    usable, detail = gpu_availability()
    yield Finding("ok" if usable else "warning", "cupy", detail)
    yield cuda_awareness()


def cuda_awareness() -> Finding:
    """Ask the library in a separate process, because loading it here would start MPI."""
    asked = "from mpi4py import MPI; from hpcdl.fabric.device.transport import cuda_aware; print(cuda_aware())"
    command = [sys.executable, "-P", "-c", asked]
    try:
        output = subprocess.run(
            command, env=launch_environment(), capture_output=True, text=True, timeout=60, check=False
        ).stdout.strip()
    except subprocess.TimeoutExpired:
        output = ""
    if output == "True":
        return judged("CUDA-aware MPI", "takes device pointers")
    detail = "does not take device pointers: messages are copied through the host" if output == "False" else ""
    advice = "load an MPI library that was built with CUDA, or accept the copies"
    return judged("CUDA-aware MPI", detail or "the library does not name it", advice)


CHOICES: Final = ("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "OMPI_MCA_pml", "OMPI_MCA_btl", "MPIR_CVAR_NOLOCAL")
"""Variables that choose the transports of an MPI library."""


def mpi_checks(probe: Probe, root: Path = machine.ROOT) -> Iterator[Finding]:
    """Yield the findings about the ranks, transports and clocks of a job."""
    ranks = len(probe.hosts)
    if probe.total != ranks:
        yield Finding("FAILED", "MPI", f"a sum over {ranks} ranks is {probe.total}", "reinstall the MPI library")
        return
    hosts = f"{len(probe.nodes)} host{'s' if len(probe.nodes) > 1 else ''}"
    yield judged("MPI", f"{probe.library}, {ranks} ranks on {hosts}; a sum over them is right")
    yield within_host(probe, os.environ)
    yield between_hosts(probe, os.environ, fast_fabric(root))
    yield clock_skew(probe)


def fast_fabric(root: Path = machine.ROOT) -> list[str]:
    """Return the ports and cards of fabrics that are faster than TCP and are up."""
    ports, cards = machine.entries(machine.infiniband(root)), machine.entries(machine.network(root))
    fast = [name for name, card in cards.items() if card["driver"].startswith(("cxi", "efa"))]
    return [*(name for name, port in ports.items() if "ACTIVE" in port["state"]), *fast]


def within_host(probe: Probe, variables: Mapping[str, str]) -> Finding:
    """Return the transports between ranks of one host: shared memory, except on a testbed."""
    names, subject = probe.transports.within_host, "transport within a host"
    if is_tcp(names) and emulated(variables) is None:
        advice = _unset(variables) or "choose shared memory"
        return judged(subject, f"{', '.join(names)}: no shared memory", advice)
    return judged(subject, ", ".join(names) or "the library does not name it")


def between_hosts(probe: Probe, variables: Mapping[str, str], fabric: list[str]) -> Finding:
    """Return the transports between hosts; TCP with an unused ``fabric`` is a fallback."""
    names, subject = probe.transports.between_hosts, "transport between hosts"
    if len(probe.nodes) == 1:
        return judged(subject, "only one host; in a job, srun hpcdl check or mpirun hpcdl check covers all hosts")
    detail = ", ".join(names) or "the library does not name it"
    if not is_tcp(names) or not fabric:
        return judged(subject, f"{detail}; no faster fabric is up" if is_tcp(names) else detail)
    advice = _unset(variables) or "use the MPI library of the cluster: hpcdl help batch"
    return judged(subject, f"{detail}: TCP fallback, although {', '.join(fabric)} is up", advice)


def _unset(variables: Mapping[str, str]) -> str:
    chosen = [name for name in CHOICES if name in variables]
    return f"unset {' '.join(chosen)}" if chosen else ""


def clock_skew(probe: Probe) -> Finding:
    """Return the greatest difference of the hosts' wall clocks, and the error of the traces' alignment."""
    if len(set(probe.machines)) == 1:
        return judged("clock skew", "one clock: all ranks are on one machine")
    offsets = [offset for offset, _ in probe.skew]
    skew, error = max(offsets) - min(offsets), max(error for _, error in probe.skew)
    detail = (
        f"wall clocks of {len(set(probe.machines))} hosts differ by {skew / 1e6:.3g} ms "
        f"(error {error / 1e6:.2g} ms); traces are aligned to {probe.alignment / 1e3:.3g} us"
    )
    advice = ""
    if skew - 2 * error > 10_000_000:  # synchronised hosts differ by less than 10 ms
        departures = [abs(offset - median(offsets)) for offset in offsets]
        worst = probe.hosts[departures.index(max(departures))]
        advice = f"synchronise {worst} (chronyc tracking): dates of runs disagree; traces are aligned anyway"
    elif probe.alignment > 1_000_000:
        advice = "repeat on a quiet network: clock errors hide shorter waits for late ranks"
    return judged("clock skew", detail, advice)


def oversubscription(probe: Probe) -> Finding:
    """Return if ranks and their threads fit on the cores that they may use, for the fullest machine."""

    def share(name: str) -> tuple[float, str, int, int, int]:
        ranks = [rank for rank, of_rank in enumerate(probe.machines) if of_rank == name]
        cores = len(set().union(*(probe.cores[rank] for rank in ranks)))
        threads = sum(probe.threads[rank] for rank in ranks)
        return threads / cores, probe.hosts[ranks[0]], len(ranks), threads, cores

    fullest, host, count, threads, cores = max(map(share, dict.fromkeys(probe.machines)))
    detail = f"{count} ranks with {threads} threads on {cores} cores of {host}"
    most = f"start at most {max(1, cores * count // threads)} ranks per host, or give them more cores"
    advice = f"{most}: ranks that share cores measure no scaling" if fullest > 1 else ""
    return judged("ranks and cores", detail, advice)


FLAGS: Final = {
    "OMPI_COMM_WORLD_SIZE": "mpirun --map-by ppr:N:numa --bind-to numa, with N ranks a domain",
    "MPI_LOCALNRANKS": "mpiexec -bind-to numa -map-by numa",
    "PALS_NRANKS": "mpiexec --cpu-bind numa",
    "SLURM_STEP_ID": "srun --cpu-bind=ldoms, with GPUs also --gpu-bind=closest",
}
"""Options that place ranks, by a variable of their launcher; the innermost launcher comes first."""


def placed(probe: Probe, localities: Mapping[str, JsonObject], variables: Mapping[str, str]) -> Finding:
    """Return if ranks run near their memory, NICs and GPUs, by the locality of each host."""
    subject, lines = "placement", list[str]()
    for host, locality in localities.items():
        cores = {rank: probe.cores[rank] for rank, of_rank in enumerate(probe.hosts) if of_rank == host}
        lines += [f"{line} ({host})" for line in misplaced(locality, cores)]
    if not all(locality["domains"] for locality in localities.values()):
        return Finding("unknown", subject, "the kernel names no NUMA domains")
    if not lines or emulated(variables):
        return judged(subject, "no rank is far from its memory, NIC or GPU, as far as their places are known")
    more = f"; {len(lines) - 1} more" if lines[1:] else ""
    return judged(subject, f"{lines[0]}{more}", remedy(variables, lines))


def misplaced(locality: JsonObject, cores: Mapping[int, Collection[int]]) -> list[str]:
    """Return a line per rank of a host that is not bound to one domain, or is far from all NICs or all GPUs.

    ``cores`` that each rank may use, by rank. A rank is far only if near cores are free.
    """
    domains = {name: machine.core_numbers(listed) for name, listed in locality["domains"].items()}
    taken = set[int]().union(*cores.values())
    lines = []
    for rank, of_rank in cores.items():
        touched = [name for name, of_domain in domains.items() if of_domain & {*of_rank}]
        if len(touched) > 1 and len(cores) > 1:
            lines.append(f"rank {rank} is not bound: its cores are of NUMA domains {', '.join(touched)}")
        for kind in ("NIC", "GPU"):
            near = set[int]().union(*map(machine.core_numbers, locality[kind].values()))
            busy = len(near & taken)  # of two hardware threads of a core, only one need be taken
            if near and not near & {*of_rank} and (not busy or 2 * (busy + len(of_rank)) <= len(near)):
                others = ", ".join(locality[kind])
                lines.append(f"rank {rank}'s {kind} ({others}) is on another NUMA domain than its cores")
    return lines


def remedy(variables: Mapping[str, str], lines: Sequence[str]) -> str:
    """Return the option of the launcher in use that mends the placement."""
    flags = next((flags for name, flags in FLAGS.items() if name in variables), "bind each rank to a NUMA domain")
    chosen = "UCX_NET_DEVICES" in variables and any("'s NIC" in line for line in lines)
    return "unset UCX_NET_DEVICES, or name a near NIC; or " * chosen + flags


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
    yield judged("launcher", str(launcher))
    other, advice = "use the mpirun of the library that mpi4py was built for", batch_advice(os.environ)
    limit = 25 if advice else 60
    try:
        ended = subprocess.run(
            python_command(2, ["-m", "hpcdl.launch.mpi_probe"]),
            env=launch_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Finding("FAILED", "MPI", f"two ranks did not find each other within {limit} s", advice or other)
        return
    answers = [line for line in ended.stdout.splitlines() if line.startswith('{"library"')]
    if ended.returncode or not answers:
        last = (ended.stderr.strip() or "no output").splitlines()[-1]
        yield Finding("FAILED", "MPI", f"two ranks ended with exit code {ended.returncode}: {last}", other)
    elif len(answers) > 1:
        yield Finding("FAILED", "MPI", "2 ranks started, but MPI sees one in each process", other)
    else:
        fields = json.loads(answers[0])
        yield from mpi_checks(Probe(**{**fields, "transports": Transports(*map(tuple, fields["transports"]))}))


def preflight_of_job() -> list[Finding]:
    """Return the findings, on rank 0. Collective. Writes 16 MiB on each host. Raises LaunchError."""
    os.environ.update(VARIABLES)
    library = load()
    check_launcher(os.environ, library)
    with abort_on_error():
        probed = probe(library, lambda: (list(host_checks()), machine.locality()))
    if probed is None:
        return []
    check_size(len(probed.hosts), os.environ, library)
    local = {host: checked for host, checked in zip(probed.hosts, probed.local, strict=True) if checked}
    places = placed(probed, {host: locality for host, (_, locality) in local.items()}, os.environ)
    findings = {host: findings for host, (findings, _) in local.items()}
    return [*mpi_checks(probed), oversubscription(probed), places, *of_hosts(findings)]


def of_hosts(hosts: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """Return one finding for each subject and verdict: that of the first host, with the hosts' names."""
    groups: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for host, findings in hosts.items():
        for finding in findings:
            groups.setdefault((finding.subject, finding.verdict), []).append((host, finding))
    shown = []
    for group in groups.values():
        names = [host for host, _ in group]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        where = f"{', '.join(names[:SHOWN])}{more}: " if len(hosts) > 1 else ""
        first = group[0][1]
        shown.append(first._replace(detail=f"{where}{first.detail}"))
    return shown
