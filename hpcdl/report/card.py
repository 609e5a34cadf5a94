"""The job card: where and with what a run was made; and how to make it again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from hpcdl.report.document import Section, Table
from hpcdl.report.quantities import volume
from hpcdl.report.warnings import UNKNOWN, usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.trace.run import Run

METHOD = (
    "A step, or one repetition of a collective, takes as long as its slowest rank. Times are medians over "
    "steps after warm-up, with a distribution-free 95 % interval from order statistics; with several "
    "launches, medians over launches of those. Below 6 values there is no interval. Efficiencies are ratios "
    "of medians with a seeded bootstrap interval. Near-linear: the lower bound of the efficiency is at least "
    "0.90. With one launch the intervals say how well that launch was measured, not how much launches differ."
)


def card(run: Run, warnings: Sequence[str]) -> Section:
    """What OPERATIONS calls the job card: facts, then warnings."""
    env = run.environment
    cpu, mpi, git, software = (_dict(env.get(name)) for name in ("cpu", "mpi", "git", "software"))
    cores = usable_cores(env)
    facts = {
        "run": f"{run.path.name}{'' if run.complete else ' (not complete)'}",
        "date": env.get("date"),
        "nodes": mpi.get("nodes"),
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
        "GPU": _gpu(_dict(env.get("gpu"))),
        "software": ", ".join(
            f"{name} {software[name]}"
            for name in ("hpcdl", "python", "numpy", "mpi4py", "numba", "cupy", "blas")
            if software.get(name, UNKNOWN) != UNKNOWN
        ),
        "commit": _words(
            git.get("commit"), f"{git['changed_files']} changed files" if git.get("changed_files") else ""
        ),
        "timer": _words(_dict(env.get("timer")).get("implementation"), env.get("clocksource")),
        "environment key": env.get("key"),
    }
    rows = [(name, str(value or UNKNOWN)) for name, value in facts.items()]
    return Section(
        "Job", points=[f"Warning: {one}" for one in warnings], tables=[Table("", ("fact", "value"), rows, 2)]
    )


def method(run: Run, records: Sequence[Record]) -> Section:
    """The statistics in words, warm-up counts, and the command and suite that make the run again."""
    kinds: dict[tuple[str, int], list[int]] = {}
    for record in records:
        key = (str(record.get("kind") or "train"), record["warmup_steps"])
        kinds.setdefault(key, []).append(record["measured_steps"])
    counts = [
        f"{kind}: {warmup} warm-up steps left out, {min(steps)} to {max(steps)} steps measured per case."
        for (kind, warmup), steps in kinds.items()
    ]
    command = run.environment.get("command")
    said = shlex.join(map(str, command)) if isinstance(command, list) else str(command or UNKNOWN)
    return Section("Method and how to reproduce", [METHOD], [*counts, f"Command: `{said}`"], verbatim=run.suite)


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
    shown = {name: value for name, value in variables.items() if not name.startswith(("SLURM_", "HPCDL_"))}
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
    return f"{', '.join(counted)}, driver {gpu.get('driver')}" if counted else ""
