"""Launchers that start many processes which do not find each other: each would run the whole suite alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAYS_HOW_MANY: Final = {
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    "PMI_SIZE": ("PMI_RANK", "a PMI launcher (MPICH's or Intel MPI's mpirun, srun --mpi=pmi2)"),
    "MPI_LOCALNRANKS": ("MPI_LOCALRANKID", "MPICH's mpirun"),
    "PALS_NRANKS": ("PALS_RANKID", "PALS' mpiexec"),
    "SLURM_STEP_NUM_TASKS": ("SLURM_PROCID", "srun"),
}
"""Number of processes: number of this one, launcher. The nearest comes first: an mpirun inside a Slurm job has its
daemons started by srun, one per node."""

_BATCH_JOBS: Final = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PE_HOSTFILE")
"""Set where a batch system has lent nodes, of which there may be several."""

_INTERACTIVE_STEP: Final = "4294967290"
"""The step that salloc opens a user's shell in."""


def _told(environment: Mapping[str, str]) -> str | None:
    """The variable in which the nearest launcher says how many processes it started; None without a launcher."""
    for name in _SAYS_HOW_MANY:
        by_hand = name.startswith("SLURM") and environment.get("SLURM_STEP_ID") == _INTERACTIVE_STEP
        if environment.get(name, "").isdecimal() and not by_hand:
            return name
    return None


def launched(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of a launcher's, rather than a user's."""
    return _told(environment) is not None or "PMIX_RANK" in environment


def in_batch_job(environment: Mapping[str, str]) -> bool:
    """Whether a batch system has lent the nodes on which ranks would be started."""
    return any(name in environment for name in _BATCH_JOBS)


def is_first(environment: Mapping[str, str]) -> bool:
    """Whether this is the process to speak for all that the launcher started, whatever MPI sees."""
    name = _told(environment)
    return name is None or environment.get(_SAYS_HOW_MANY[name][0], "0") == "0"


def mismatch(size: int, environment: Mapping[str, str], library: str) -> str | None:
    """One line for exit 78 when MPI sees ``size`` = 1 rank and the launcher says more; None if all is well."""
    name = _told(environment)
    if size != 1 or name is None or int(environment[name]) <= 1:
        return None
    return (
        f"{_SAYS_HOW_MANY[name][1]} started {environment[name]} processes ({name}) but {library} sees one rank: "
        f"launcher and MPI library do not fit. With Slurm try srun --mpi=pmi2 (MPICH), srun --mpi=pmix "
        f"(Open MPI), or the library's own mpirun inside the job"
    )
