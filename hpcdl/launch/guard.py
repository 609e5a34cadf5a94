"""Launchers that start many processes which do not find each other: each would run the whole suite alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAYS_HOW_MANY: Final = {
    "SLURM_STEP_NUM_TASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "a PMI launcher (MPICH's or Intel MPI's mpirun, srun --mpi=pmi2)",
    "MPI_LOCALNRANKS": "MPICH's mpirun",
    "PALS_NRANKS": "PALS' mpiexec",
}


def launched(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of a launcher's, rather than a user's."""
    return any(name in environment for name in (*_SAYS_HOW_MANY, "PMIX_RANK"))


def mismatch(size: int, environment: Mapping[str, str], library: str) -> str | None:
    """One line for exit 78 when MPI sees ``size`` = 1 rank and the launcher says more; None if all is well."""
    if size != 1:
        return None
    for name, launcher in _SAYS_HOW_MANY.items():
        told = environment.get(name, "")
        if told.isdecimal() and int(told) > 1:
            return (
                f"{launcher} started {told} processes ({name}) but {library} sees one rank: launcher and MPI "
                f"library do not fit. With Slurm try srun --mpi=pmi2 (MPICH), srun --mpi=pmix (Open MPI), or the "
                f"library's own mpirun inside the job"
            )
    return None
