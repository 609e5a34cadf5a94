"""Placement of ranks: NUMA domains, NICs and GPUs beside the cores that a rank may use.

The kernel states the cores near a PCI device; all cores mean that it does not know them, as on most virtual
machines, whose devices have the domain -1. Unknown is neither near nor far.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from hpcdl.launch import machine
from hpcdl.launch.machine import ROOT
from hpcdl.trace.files import JsonObject

FLAGS: Final = {
    "OMPI_COMM_WORLD_SIZE": "mpirun --map-by ppr:N:numa --bind-to numa, with N ranks a domain",
    "MPI_LOCALNRANKS": "mpiexec -bind-to numa -map-by numa",
    "PALS_NRANKS": "mpiexec --cpu-bind numa",
    "SLURM_STEP_ID": "srun --cpu-bind=ldoms, with GPUs also --gpu-bind=closest",
}
"""Options that place ranks, by a variable of their launcher; the innermost launcher comes first."""


def locality(root: Path = ROOT, chosen: str = os.environ.get("UCX_NET_DEVICES", "")) -> JsonObject:
    """Return the cores by NUMA domain, by NIC that is up and by GPU of a node: lists as in sysfs, such as "0-7".

    NICs are the active devices of InfiniBand and RoCE, else the interfaces that are up; ``chosen`` may name some.
    Left out are domains of memory alone, and devices of unknown place.
    """
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda node: int(node.name[4:]))
    domains = {node.name[4:]: cores for node in nodes if (cores := machine.text(node / "cpulist"))}

    whole = core_numbers(",".join(domains.values()))

    def placed(devices: Mapping[str, Path]) -> dict[str, str]:
        cores = {name: machine.text(device / "local_cpulist") for name, device in devices.items()}
        return {name: near for name, near in cores.items() if set() < core_numbers(near) < whole}

    classes, pci = root / "sys/class", root / "sys/bus/pci/devices"
    ports, cards = machine.entries(machine.infiniband(root)), machine.entries(machine.network(root))
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


def misplaced(locality: JsonObject, cores: Mapping[int, Collection[int]]) -> list[str]:
    """Return a line per rank of a host that is not bound to one domain, or is far from all NICs or all GPUs.

    ``cores`` that each rank may use, by rank. A rank is far only if near cores are free.
    """
    domains = {name: core_numbers(listed) for name, listed in locality["domains"].items()}
    taken = set[int]().union(*cores.values())
    lines = []
    for rank, of_rank in cores.items():
        touched = [name for name, of_domain in domains.items() if of_domain & {*of_rank}]
        if len(touched) > 1 and len(cores) > 1:
            lines.append(f"rank {rank} is not bound: its cores are of NUMA domains {', '.join(touched)}")
        for kind in ("NIC", "GPU"):
            near = set[int]().union(*map(core_numbers, locality[kind].values()))
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
