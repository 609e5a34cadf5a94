"""``hpcdl check``: check the machine before a run, one line per finding."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl.launch import machine
from hpcdl.launch.mpirun import NoLauncher, launch_environment, mpirun, python_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Finding(NamedTuple):
    """Result of one check; ``verdict`` is ``ok``, ``warning`` or ``FAILED``."""

    verdict: str
    subject: str
    detail: str
    advice: str = ""
    """Advice; empty if the verdict is ``ok``."""


_PROBE = (
    "from mpi4py import MPI; c = MPI.COMM_WORLD;"
    "s = c.allreduce(1); print(c.size, s, *MPI.get_vendor(), sep='|') if c.rank == 0 else None"
)


_TRANSPORTS: Final = ("UCX_TLS", "FI_PROVIDER", "OMPI_MCA_btl", "MPIR_CVAR_CH4_OFI_PROVIDER")
"""Variables that choose the transports of an MPI library."""

_CUDA_AWARE = "from mpi4py import MPI; from hpcdl.fabric.device.transport import cuda_aware; print(cuda_aware())"


def preflight() -> Iterator[Finding]:
    """Yield the findings one by one. Starts 2 ranks; writes 16 MiB to the current folder."""
    yield from _mpi()
    yield cores()
    yield governor()
    yield network()
    yield clock_source()
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
            stdin=subprocess.DEVNULL,
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


def cores(root: Path = machine.ROOT) -> Finding:
    """Return the cores that ranks may use: fewer than the machine has if pinned or limited by a control group."""
    available = len(os.sched_getaffinity(0))
    quota = machine.cpu(root).get("quota_cores", machine.UNKNOWN)
    limit = (
        f"; the control group limits them to {quota:g}" if isinstance(quota, float) and quota < available else ""
    )
    detail = f"{available} of {os.cpu_count()} cores are available{limit}"
    if available > 1 and not limit:
        return Finding("ok", "cores", f"{detail}; more ranks x threads than that share cores")
    return Finding("warning", "cores", detail, "start no more ranks x threads than that, or ask for more cores")


def governor(root: Path = machine.ROOT) -> Finding:
    """Return the frequency governor of the first processor."""
    found = str(machine.cpu(root).get("governor", machine.UNKNOWN))
    if found in {"performance", machine.UNKNOWN}:
        return Finding("ok", "CPU governor", found)
    advice = "cpupower frequency-set -g performance, or ask the administrator"
    return Finding("warning", "CPU governor", found, advice)


def clock_source(root: Path = machine.ROOT) -> Finding:
    """Return the kernel's clock source; others than the processor's counter are slow and may drift."""
    path = root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    found = machine.text(path) or machine.UNKNOWN
    if found in {"tsc", "arch_sys_counter", "timebase", "kvm-clock", machine.UNKNOWN}:
        return Finding("ok", "clock source", found)
    return Finding(
        "warning", "clock source", found, "choose tsc: clocks of nodes drift apart less, and read faster"
    )


def network(root: Path = machine.ROOT, variables: Mapping[str, str] = os.environ) -> Finding:
    """Return if a setting of the environment makes MPI use TCP although InfiniBand is up."""
    ports = machine.infiniband(root)
    active = (
        [name for name, port in ports.items() if "ACTIVE" in str(port["state"])] if isinstance(ports, dict) else []
    )
    tcp = [name for name, value in variables.items() if name in _TRANSPORTS and "tcp" in value.lower().split(",")]
    if active and tcp:
        detail = f"{', '.join(active)} is up, but {', '.join(tcp)} chooses TCP"
        return Finding("warning", "network", detail, f"unset {' '.join(tcp)}")
    return Finding("ok", "network", f"InfiniBand {', '.join(active)} is up" if active else "no InfiniBand is up")


def _clock() -> Finding:
    resolution = time.get_clock_info("perf_counter").resolution
    steps = sorted(b - a for a, b in ((time.perf_counter_ns(), time.perf_counter_ns()) for _ in range(1001)))
    detail = f"resolution {resolution * 1e9:.0f} ns, one reading {steps[500]} ns"
    if steps[500] < 1000:
        return Finding("ok", "clock", detail)
    return Finding("warning", "clock", detail, "times of short operations include the clock's: choose tsc")


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
        "" if took < 2 and free > 1e9 else "choose a faster or emptier file system for -o",
    )


def _gpu() -> Iterator[Finding]:
    gpu = machine.gpu(machine.ROOT)
    devices = gpu.get("devices", []) if isinstance(gpu, dict) else []
    if not devices:
        yield Finding("ok", "GPU", "no GPU; backends on the CPU are not affected")
        return
    yield Finding("ok", "GPU", ", ".join(str(device.get("name")) for device in devices))
    from hpcdl.nn.kernels.cupy.gpu import gpu_availability

    usable, detail = gpu_availability()
    yield Finding("ok" if usable else "warning", "cupy", detail)
    yield _cuda_awareness()


def _cuda_awareness() -> Finding:
    """Ask the library in a separate process, because loading it here would start MPI."""
    output = subprocess.run(
        [sys.executable, "-P", "-c", _CUDA_AWARE],
        env=launch_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout.strip()
    meanings = {"True": "takes device pointers", "False": "does not take device pointers: messages are staged"}
    return Finding(
        "ok" if output in meanings else "warning",
        "CUDA-aware MPI",
        meanings.get(output, "not known to the library"),
        "" if output == "True" else "load an MPI library built with CUDA, or accept copies through the host",
    )
