"""Differences between the environments of two sets of runs, one line per recorded fact."""

import re
from collections.abc import Sequence
from typing import Final

from hpcdl.analysis.over_time.series import RunSeries
from hpcdl.analysis.over_time.suspects import host_list
from hpcdl.analysis.run.disturbance import facts as table
from hpcdl.launch.environment import differences
from hpcdl.trace.files import JsonMapping

VARIABLES: Final = re.compile(
    r"(UCX|MPICH|MPIR|FI|I_MPI|NCCL|CUDA|OPENBLAS|MKL|OMP|GOMP|KMP|NUMBA)_|OMPI_MCA_(btl|coll|mpi|mtl|osc|pml)(_|$)"
    r"|SLURM_JOB_PARTITION$"
)
"""Variables that change how fast a job is; others name the job, its processes or its files."""


def environment_changes(before: Sequence[RunSeries], now: Sequence[RunSeries], *, other: bool) -> list[str]:
    """Return the facts that differ between the sides, those of the environment key first.

    ``other``: the environment keys of the sides differ.
    """
    lines = differences(before[-1].environment, now[-1].environment) if other else []
    lines = lines or ["its key differs, in no recorded fact"] * other
    sides = [[_recorded_facts(run.environment) for run in runs] for runs in (before, now)]
    for name in dict.fromkeys(name for side in sides for facts in side for name in facts):
        texts = [" or ".join(sorted({facts.get(name, "not set") for facts in side})) for side in sides]
        if texts[0] != texts[1]:
            lines.append("{} was {} and is {}".format(name, *(shortened(text, 60) for text in texts)))
    return lines


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters, without its middle."""
    if len(text) <= width:
        return text
    left = (width - 3) // 2
    return f"{text[:left]}...{text[len(text) - (width - 3 - left) :]}"


def _recorded_facts(env: JsonMapping) -> dict[str, str]:
    cpu, software, git = (table(env, name) for name in ("cpu", "software", "git"))
    changed = "-dirty" if git.get("changed_files") else ""
    ranks = env.get("ranks") or ()
    facts = {
        "hpcdl": software.get("hpcdl"),
        "commit": f"{str(git['commit'])[:12]}{changed}" if git.get("commit") else None,
        "governor": cpu.get("governor"),
        "CPU quota": cpu.get("quota_cores"),
        "clock source": env.get("clocksource"),
        "hosts": host_list(sorted({str(rank.get("hostname")) for rank in ranks})),
        "cores of ranks": " ".join(dict.fromkeys(str(rank.get("affinity")) for rank in ranks)),
        **{name: value for name, value in table(env, "variables").items() if VARIABLES.match(name)},
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}
