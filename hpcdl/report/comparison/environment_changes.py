"""Differences between the environments of two sets of runs: likely causes of a regression."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hpcdl.launch.environment import differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcdl.analysis.over_time.series import RunSeries


VARIABLES: Final = re.compile(
    r"(UCX|MPICH|MPIR|FI|I_MPI|NCCL|CUDA|OPENBLAS|MKL|OMP|GOMP|KMP|NUMBA)_|OMPI_MCA_(btl|coll|mpi|mtl|osc|pml)(_|$)"
    r"|SLURM_JOB_PARTITION$"
)
"""Variables that change how fast a job is; others name the job, its processes or its files."""

ABSENT: Final = "not set"
SHORT: Final = 60
"""Longest value in a line (characters)."""


def environment_changes(baseline: Sequence[RunSeries], candidate: Sequence[RunSeries]) -> list[str]:
    """Return one line per recorded fact that differs between the sides; the environment key's come first."""
    keys = [list(dict.fromkeys(key for run in runs for key in run.environments)) for runs in (baseline, candidate)]
    lines = [
        f"the {name}'s runs have {len(side)} environments: {' '.join(side)}"
        for name, side in zip(("baseline", "candidate"), keys, strict=True)
        if len(side) > 1
    ]
    if set(keys[0]) != set(keys[1]):
        before, now = (" ".join(side) or "none" for side in keys)
        lines.append(f"environment key was {before} and is {now}")
        lines += differences(baseline[-1].environment, candidate[-1].environment)
    sides = [[_facts(run.environment) for run in runs] for runs in (baseline, candidate)]
    for name in dict.fromkeys(name for side in sides for facts in side for name in facts):
        before, now = (_values(name, side) for side in sides)
        if before != now:
            lines.append(f"{name} was {before} and is {now}")
    return lines


def _values(name: str, side: Iterable[Mapping[str, str]]) -> str:
    text = " or ".join(sorted({facts.get(name, ABSENT) for facts in side}))
    return text if len(text) <= SHORT else f"{text[: SHORT - 4]} ..."


def _facts(env: Mapping[str, Any]) -> dict[str, str]:
    """Return recorded facts that are no part of the environment key."""
    cpu, software, git = (_table(env.get(name)) for name in ("cpu", "software", "git"))
    changed = "-dirty" if git.get("changed_files") else ""
    ranks = env.get("ranks") or ()
    facts = {
        "hpcdl": software.get("hpcdl"),
        "commit": f"{str(git['commit'])[:12]}{changed}" if git.get("commit") else None,
        "governor": cpu.get("governor"),
        "CPU quota": cpu.get("quota_cores"),
        "clock source": env.get("clocksource"),
        "hosts": " ".join(dict.fromkeys(str(rank.get("hostname")) for rank in ranks)),
        "cores of ranks": " ".join(dict.fromkeys(str(rank.get("affinity")) for rank in ranks)),
        **{name: value for name, value in _table(env.get("variables")).items() if VARIABLES.match(name)},
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
