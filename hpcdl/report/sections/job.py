"""Job card: machine, software and settings of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.run.cores import UNKNOWN
from hpcdl.report.formats.cells import plural, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcdl.report.run.findings import Findings

LAUNCHERS: Final = (
    *("SLURM_", "HPCDL_", "PMIX_", "PRTE_", "OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_num_procs"),
    *("OMPI_MCA_orte", "OMPI_MCA_initial"),
)
"""Beginnings of variables that launchers set for their processes."""


def page(found: Findings) -> Section:
    """Return one row per fact."""
    run, env = found.run, found.run.environment
    cpu, mpi, git, software = (_dict(env.get(name)) for name in ("cpu", "mpi", "git", "software"))
    cores, changed = found.usable_cores, git.get("changed_files")
    facts = {
        "run": f"{found.name}{'' if run.complete else ' (not complete)'}",
        "date": env.get("date"),
        "nodes": _words(mpi.get("nodes"), "(emulated on one machine)" if env.get("emulated") else ""),
        "MPI": _words(mpi.get("library"), mpi.get("version")),
        "transports loaded": _transports(_dict(env.get("libraries"))),
        "settings": _settings(_dict(env.get("variables"))),
        "pinning": _pinning(env.get("ranks") or []),
        "cores per node": f"{cores:g} usable" if cores is not None else None,
        "processor": _words(
            cpu.get("model"), f"({cpu.get('physical_cores', UNKNOWN)} cores, SMT {cpu.get('smt', UNKNOWN)})"
        ),
        "governor": cpu.get("governor"),
        "memory": volume(memory) if isinstance(memory := env.get("memory_bytes"), int) else None,
        "kernel": env.get("kernel"),
        "network": _cards(env, ("network", "infiniband")),
        "GPU": _gpu(_dict(env.get("gpu"))) if env else None,
        "software": ", ".join(
            f"{name} {software[name]}"
            for name in ("hpcdl", "python", "numpy", "mpi4py", "numba", "cupy", "blas")
            if software.get(name, UNKNOWN) != UNKNOWN
        ),
        "commit": _words(git.get("commit"), f"and {plural(changed, 'changed file')}" if changed else ""),
        "timer": _words(_dict(env.get("timer")).get("implementation"), env.get("clocksource")),
        "environment key": env.get("key"),
    }
    rows = [(name, str(value or UNKNOWN)) for name, value in facts.items()]
    return Section("Job", tables=[Table("", ("fact", "value"), rows, 2)])


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(*parts: Any) -> str:
    """The first line of each part that is known."""
    lines = (str(part).strip("\0 \n").split("\n")[0] for part in parts if part not in {None, UNKNOWN, ""})
    return " ".join(lines)


def _transports(libraries: Mapping[str, Sequence[str]]) -> str:
    kinds = ("ucx", "ofi", "verbs", "shared_memory", "nccl")
    names = {path.rsplit("/", 1)[-1].split(".so")[0] for kind in kinds for path in libraries.get(kind, [])}
    return ", ".join(sorted(names)) or ("none of UCX, libfabric, verbs" if libraries else "")


def _settings(variables: Mapping[str, str]) -> str:
    """Return the user's settings; variables that a launcher sets for its processes are left out."""
    shown = {
        name: value
        for name, value in variables.items()
        if not name.startswith(LAUNCHERS) and (name.startswith("OMPI_MCA_") or not name.startswith("OMPI_"))
    }
    return ", ".join(f"{name}={value}" for name, value in list(shown.items())[:8]) or "none"


def _pinning(ranks: Sequence[Mapping[str, Any]]) -> str:
    shown = [f"{number}: {rank.get('affinity', UNKNOWN)}" for number, rank in enumerate(ranks[:8])]
    return "; ".join(shown) + (f"; ... {len(ranks)} ranks" if len(ranks) > 8 else "")


def _cards(env: Mapping[str, Any], kinds: Iterable[str]) -> str:
    return ", ".join(
        f"{name} ({card.get('driver')}, {card.get('rate')})"
        for kind in kinds
        for name, card in _dict(env.get(kind)).items()
        if card.get("driver", UNKNOWN) != UNKNOWN
    )


def _gpu(gpu: Mapping[str, Any]) -> str:
    names = [str(device.get("name")) for device in gpu.get("devices", [])]
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return f"{', '.join(counted)}, driver {gpu.get('driver')}" if counted else "none seen"


SECTION = Declaration(910, page)
