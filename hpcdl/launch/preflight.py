"""``hpcdl check``: look at the machine before a run, and say in a line each what would spoil it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.launch import machine
from hpcdl.launch.mpirun import NoLauncher, launch_environment, mpirun, python_command

if TYPE_CHECKING:
    from collections.abc import Iterator


class Finding(NamedTuple):
    """One thing looked at: ``verdict`` is ``ok``, ``warning`` or ``FAILED``."""

    verdict: str
    what: str
    detail: str


_PROBE = (
    "from mpi4py import MPI; c = MPI.COMM_WORLD;"
    "s = c.allreduce(1); print(c.size, s, *MPI.get_vendor(), sep='|') if c.rank == 0 else None"
)


_CUDA_AWARE = (
    "from mpi4py import MPI; from hpcdl.fabric.transport import says_cuda_aware; print(says_cuda_aware())"
)


def preflight() -> Iterator[Finding]:
    """All findings, each as soon as it is known. Starts 2 ranks; writes 16 MiB to the current folder."""
    yield from _mpi()
    yield _cores()
    yield _governor()
    yield _clock()
    yield _disk()
    yield from _gpu()


def _mpi() -> Iterator[Finding]:
    try:
        launcher = mpirun()
    except NoLauncher as error:
        yield Finding("FAILED", "launcher", str(error))
        return
    yield Finding("ok", "launcher", str(launcher))
    try:
        probe = subprocess.run(
            python_command(2, ["-c", _PROBE]),
            env=launch_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Finding("FAILED", "MPI", "two ranks did not find each other within 60 s")
        return
    answer = next((line.split("|") for line in probe.stdout.splitlines() if line.count("|") == 3), None)
    if probe.returncode or answer is None:
        last = (probe.stderr.strip() or "no output").splitlines()[-1]
        yield Finding("FAILED", "MPI", f"two ranks ended with exit code {probe.returncode}: {last}")
    elif answer[:2] != ["2", "2"]:
        yield Finding(
            "FAILED", "MPI", f"2 ranks started, but MPI sees {answer[0]}: launcher and library do not fit"
        )
    else:
        yield Finding("ok", "MPI", f"{answer[2]} {answer[3]}, 2 ranks add up")


def _cores() -> Finding:
    mine = len(os.sched_getaffinity(0))
    detail = f"{mine} of {os.cpu_count()} cores are ours; more ranks x threads than that share cores"
    return Finding("ok" if mine > 1 else "warning", "cores", detail)


def _governor() -> Finding:
    governor = machine.cpu(machine.ROOT).get("governor", machine.UNKNOWN)
    steady = governor in {"performance", machine.UNKNOWN}
    return Finding("ok" if steady else "warning", "CPU governor", str(governor))


def _clock() -> Finding:
    resolution = time.get_clock_info("perf_counter").resolution
    steps = sorted(b - a for a, b in ((time.perf_counter_ns(), time.perf_counter_ns()) for _ in range(1001)))
    detail = f"resolution {resolution * 1e9:.0f} ns, one reading {steps[500]} ns"
    return Finding("ok" if steps[500] < 1000 else "warning", "clock", detail)


def _disk() -> Finding:
    try:
        with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
            began = time.perf_counter()
            file.write(bytes(1 << 24))
            file.flush()
            os.fsync(file.fileno())
            took = time.perf_counter() - began
    except OSError as error:
        return Finding("FAILED", "disk", f"{Path.cwd()}: {error.strerror}")
    free = shutil.disk_usage(Path.cwd()).free
    return Finding(
        "ok" if took < 2 and free > 1e9 else "warning",
        "disk",
        f"16 MiB written and synchronised in {took:.2f} s, {free / 1e9:.0f} GB free",
    )


def _gpu() -> Iterator[Finding]:
    gpu = machine.gpu(machine.ROOT)
    devices = gpu.get("devices", []) if isinstance(gpu, dict) else []
    if not devices:
        yield Finding("ok", "GPU", "no GPU; backends on the CPU are not affected")
        return
    yield Finding("ok", "GPU", ", ".join(str(device.get("name")) for device in devices))
    from hpcdl.nn.kernels.cupy.gpu import found

    usable, detail = found()
    yield Finding("ok" if usable else "warning", "cupy", detail)
    yield _cuda_awareness()


def _cuda_awareness() -> Finding:
    """Ask the library in a process of its own: loading it here would start MPI."""
    answer = subprocess.run(
        [sys.executable, "-c", _CUDA_AWARE],
        env=launch_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout.strip()
    said = {"True": "takes device pointers", "False": "does not take device pointers: messages are staged"}
    return Finding(
        "ok" if answer in said else "warning", "CUDA-aware MPI", said.get(answer, "the library does not say")
    )
