"""Properties of the machine from /proc and /sys: processors, memory, network, GPUs, libraries, counters.

``root`` is the folder that contains ``proc`` and ``sys``. Unknown values are the text ``"unknown"``.
"""

import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hpcdl.trace.files import JsonObject
from hpcdl.trace.link_counters import UNKNOWN_RATES, kind_of


def shortage(needed: int, ranks: int, available: int) -> str | None:
    """Return one line if ``ranks`` ranks of ``needed`` bytes each exceed ``available`` bytes; otherwise None."""
    if needed * ranks <= available:
        return None
    each = f"{ranks} ranks x {needed / 1e9:.2f} GB" if ranks > 1 else f"{needed / 1e9:.2f} GB"
    return f"needs at least {each} of memory, but only {available / 1e9:.2f} GB are available"


UNKNOWN: Final = "unknown"
ROOT: Final = Path("/")
LIBRARIES: Final = {
    "mpi": r"lib(p?mpi|mpich|open-(rte|pal)|prrte|mpi_\w+)\b",
    "ucx": r"libuc[pstmgc]\w*",
    "ofi": r"lib(fabric|cxi|psm2|psm3|efa)\b",
    "verbs": r"lib(ibverbs|rdmacm|mlx[45])\b",
    "shared_memory": r"libxpmem\b",
    "blas": r"lib(\w*openblas\w*|mkl_\w+|blis\w*|flexiblas|c?blas|lapack)",
    "nccl": r"lib(nccl|rccl)\b",
}


def loaded_libraries(root: Path = ROOT) -> dict[str, list[str]] | str:
    """Return the paths of the shared libraries in this process, sorted, by purpose; an empty list: none loaded."""
    maps = text(root / "proc/self/maps")
    if not maps:
        return UNKNOWN
    mapped = {line.split(maxsplit=5)[5] for line in maps.splitlines() if ".so" in line}
    return {
        kind: sorted(path for path in mapped if re.match(pattern, Path(path).name))
        for kind, pattern in LIBRARIES.items()
    }


def node_memory_bytes(root: Path = ROOT) -> int:
    """Return the physical memory (bytes), or the limit of a control group (batch system, container) if smaller."""
    names = ("memory.max", "memory.limit_in_bytes")
    files = (folder / name for folder in _groups("memory", root) for name in names)
    limits = [int(digits) for file in files if (digits := text(file)).isdecimal()]  # else "max", or no such file
    return min([*limits, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")])


def _groups(controller: str, root: Path) -> list[Path]:
    """Return the folders of this process's control groups (versions 1 and 2) and of their parents.

    In a container the path of a group may be that on the host; then its limits are in the topmost folder.
    """
    folders = []
    for line in (text(root / "proc/self/cgroup") or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            inner = top / path.lstrip("/")
            folders += [inner, *(parent for parent in inner.parents if parent.is_relative_to(top))]
    return folders


def held_back_ns(root: Path = ROOT) -> tuple[int, int]:
    """Return how long this thread was ready but had no core, and was held back by its own group, until now (ns).

    The former contains the latter: time in which a control group's limit stopped its processes. Both are 0 if the
    kernel does not count them. Sources: linux/Documentation/scheduler/sched-stats.rst, sched-bwc.rst.
    """
    counted = text(root / "proc/thread-self/schedstat").split()
    limited = 0
    for folder in _groups("cpu", root):
        counters = dict(line.split() for line in text(folder / "cpu.stat").splitlines() if line.count(" ") == 1)
        limited += int(counters.get("throttled_time", 0)) + 1000 * int(counters.get("throttled_usec", 0))
    return int(counted[1]) if len(counted) == 3 else 0, limited


def cpu(root: Path = ROOT) -> JsonObject:
    """Return model, physical cores, SMT, frequency governor and the control groups' quota (cores)."""
    system = root / "sys/devices/system/cpu"
    cores = {text(folder / "topology/thread_siblings_list") for folder in _folders(system)} - {""}
    info = text(root / "proc/cpuinfo")
    limits = (
        text(folder / "cpu.max").split() or [text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        for folder in _groups("cpu", root)
    )
    # the least of the control groups; "max" or -1: none
    quotas: list[Any] = [int(words[0]) / int(words[1]) for words in limits if all(map(str.isdecimal, words))]
    return {
        "model": field(info, "model name") or field(info, "Model") or field(info, "CPU part") or UNKNOWN,
        "physical_cores": len(cores) or UNKNOWN,
        "smt": {"1": "on", "0": "off"}.get(text(system / "smt/active"), UNKNOWN),
        "governor": text(system / "cpu0/cpufreq/scaling_governor") or UNKNOWN,
        "quota_cores": min(quotas, default=UNKNOWN),
    }


def memory(root: Path = ROOT) -> int | str:
    """Return the installed memory in bytes."""
    kibibytes = number(field(text(root / "proc/meminfo"), "MemTotal").removesuffix("kB").strip())
    return kibibytes * 1024 if isinstance(kibibytes, int) else UNKNOWN


def clock_source(root: Path = ROOT) -> str:
    """Return the kernel's clock source."""
    return text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource") or UNKNOWN


def _driver(device: Path) -> str:
    try:
        return (device / "driver").resolve(strict=True).name
    except OSError:
        return UNKNOWN


def network(root: Path = ROOT) -> JsonObject | str:
    """Return driver, rate and state of each interface."""
    cards = {}
    for card in _folders(root / "sys/class/net"):
        rate = number(text(card / "speed"))  # -1 or an error if the interface is virtual or down
        cards[card.name] = {
            "driver": _driver(card / "device"),
            "rate": UNKNOWN if rate in {UNKNOWN, -1, *UNKNOWN_RATES} else f"{rate} Mbit/s",
            "state": text(card / "operstate") or UNKNOWN,
        }
    return cards or UNKNOWN


def infiniband(root: Path = ROOT) -> JsonObject | str:
    """Return driver, rate and state of each "device/port"."""
    return {
        f"{port.parent.parent.name}/{port.name}": {
            "driver": _driver(port.parent.parent / "device"),
            "rate": text(port / "rate") or UNKNOWN,
            "state": text(port / "state") or UNKNOWN,
        }
        for port in _ports(root)
    } or UNKNOWN


def _ports(root: Path) -> list[Path]:
    return [port for device in _folders(root / "sys/class/infiniband") for port in _folders(device / "ports")]


def gpu(root: Path = ROOT) -> JsonObject | str:
    """Return ``{"driver", "devices": [{"name"}]}`` from the driver's files."""
    driver = re.search(r"Kernel Module\D*(\d[\d.]*)", text(root / "proc/driver/nvidia/version"))
    models = [field(text(card / "information"), "Model") for card in _folders(root / "proc/driver/nvidia/gpus")]
    if not driver and not models:
        return UNKNOWN
    return {
        "driver": driver[1] if driver else UNKNOWN,
        "devices": [{"name": model or UNKNOWN} for model in models],
    }


def locality(root: Path = ROOT, chosen: str = os.environ.get("UCX_NET_DEVICES", "")) -> JsonObject:
    """Return the cores by NUMA domain, by NIC that is up and by GPU of a node: lists as in sysfs, such as "0-7".

    The kernel states the cores near a PCI device; all cores mean that it does not know them, as on most virtual
    machines, whose devices have the domain -1. Unknown is neither near nor far. NICs are the active devices of
    InfiniBand and RoCE, else the interfaces that are up; ``chosen`` may name some. Left out are domains of memory
    alone, and devices of unknown place.
    """
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda node: int(node.name[4:]))
    domains = {node.name[4:]: cores for node in nodes if (cores := text(node / "cpulist"))}

    whole = core_numbers(",".join(domains.values()))

    def placed(devices: Mapping[str, Path]) -> dict[str, str]:
        cores = {name: text(device / "local_cpulist") for name, device in devices.items()}
        return {name: near for name, near in cores.items() if set() < core_numbers(near) < whole}

    classes, pci = root / "sys/class", root / "sys/bus/pci/devices"
    ports, cards = entries(infiniband(root)), entries(network(root))
    active = [name.partition("/")[0] for name, port in ports.items() if "ACTIVE" in port["state"]]
    up = [name for name, card in cards.items() if card["state"] == "up"]
    nics = {name: classes / "infiniband" / name / "device" for name in active}
    gpus = {bus.name: pci / bus.name for bus in sorted((root / "proc/driver/nvidia/gpus").glob("*:*"))}
    nics = nics or {name: classes / "net" / name / "device" for name in up}
    names = {name.partition(":")[0] for name in chosen.split(",")} & nics.keys()
    used = {name: nics[name] for name in nics if name in names or not names}
    return {"domains": domains, "NIC": placed(used), "GPU": placed(gpus)}


def core_numbers(listed: str) -> set[int]:
    """Return the cores of a list such as "0-7,16"."""
    ranges = [re.fullmatch(r"(\d+)(?:-(\d+))?", part) for part in listed.split(",")]
    return {core for ends in ranges if ends for core in range(int(ends[1]), int(ends[2] or ends[1]) + 1)}


def driver_statistics(interface: str) -> dict[str, int]:
    """Return what ``ethtool -S`` prints of an interface; empty if its driver has none. Starts no program.

    Source: linux/ethtool.h, ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS and ETHTOOL_GSTATS.
    """

    def ask(command: int, head: bytes, size: int) -> bytes:
        buffer = array("B", struct.pack("=I", command) + head + bytes(size))
        request = struct.pack("16sP16x", interface.encode()[:15], buffer.buffer_info()[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, 0x8946, request)  # SIOCETHTOOL
        return buffer.tobytes()

    try:
        (count,) = struct.unpack_from("=I", ask(0x37, struct.pack("=IQ", 0, 1 << 1), 4), 16)
        spare = 2 * count + 1024  # the kernel writes as many as there are then
        names = ask(0x1B, struct.pack("=II", 1, count), 32 * spare)[12:] if count else b""
        values = ask(0x1D, struct.pack("=I", count), 8 * spare)[8:] if count else b""
    except OSError:  # no statistics, no such interface, or no sockets
        return {}
    words = (word.partition(b"\0")[0] for (word,) in struct.iter_unpack("32s", names[: 32 * count]))
    numbers = struct.unpack_from(f"={count}Q", values)
    return {word.decode(errors="replace"): value for word, value in zip(words, numbers, strict=True)}


def link_counters(
    root: Path = ROOT, of_driver: Callable[[str], dict[str, int]] = driver_statistics
) -> dict[str, dict[str, int]]:
    """Return counters since boot that tell about links (:mod:`hpcdl.trace.link_counters`), by device and name.

    Devices: network interfaces, "device/port" of InfiniBand and RoCE, cxi devices, and "tcp". The counters include
    all processes of the node.
    """

    def values(*folders: Path) -> dict[str, int]:
        files = (file for folder in folders for file in _folders(folder) if kind_of(file.name))
        read = ((file.name, text(file).partition("@")[0]) for file in files)  # cxi: value@time
        return {name: int(value) for name, value in read if value.isdecimal()}

    devices = {
        f"{port.parent.parent.name}/{port.name}": values(port / "counters", port / "hw_counters")
        for port in _ports(root)
    }
    devices |= {card.name: values(card / "device/telemetry") for card in _folders(root / "sys/class/cxi")}
    for interface in _folders(root / "sys/class/net"):
        driver = {name: value for name, value in of_driver(interface.name).items() if kind_of(name)}
        devices[interface.name] = driver | values(interface / "statistics")
    return {**devices, "tcp": {name: value for name, value in tcp_counters(root).items() if kind_of(name)}}


def tcp_counters(root: Path = ROOT) -> dict[str, int]:
    """Return the host's counters of TCP since boot; empty if unknown."""
    rows = [line.split()[1:] for line in text(root / "proc/net/snmp").splitlines() if line.startswith("Tcp:")]
    values = zip(rows[0], map(number, rows[1]), strict=False) if len(rows) == 2 else ()
    return {name: value for name, value in values if isinstance(value, int)}


def text(path: Path) -> str:
    """Return a small file's text without surrounding white space and NULs; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0 \n\t")
    except OSError:  # missing, not permitted, or a file of sysfs that cannot be read
        return ""


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def entries(value: object) -> JsonObject:
    """Return a table of a description; an empty one for "unknown"."""
    return value if isinstance(value, dict) else {}


def number(digits: str) -> int | str:
    """Convert to an integer, or "unknown"."""
    return int(digits) if re.fullmatch(r"-?\d+", digits) else UNKNOWN


def field(lines: str, name: str) -> str:
    """Return the value of the line ``name: value``; empty if there is no such line."""
    match = re.search(rf"^{re.escape(name)}\s*:[ \t]*(.*)$", lines, re.MULTILINE)
    return match[1].strip() if match else ""


def run(program: str, *arguments: str) -> str:
    """Return the program's output; empty if it is missing, fails or takes more than 10 s."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, errors="replace", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
