"""Launchers that start many processes which do not find each other: each would run the whole suite alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.launch.library import Library

_SAYS_HOW_MANY: Final = {
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    "PMI_SIZE": ("PMI_RANK", "a PMI launcher (MPICH's or Intel MPI's mpirun, srun --mpi=pmi2)"),
    "MPI_LOCALNRANKS": ("MPI_LOCALRANKID", "MPICH's mpirun"),
    "PALS_NRANKS": ("PALS_RANKID", "PALS' mpiexec"),
    "SLURM_STEP_NUM_TASKS": ("SLURM_PROCID", "srun"),
}
"""Number of processes: number of this one, launcher. The nearest comes first: an mpirun inside a Slurm job has its
daemons started by srun, one per node."""

_PMIX: Final = "PMIX_NAMESPACE"
"""Set by launchers that speak PMIx: Open MPI 5's mpirun, prterun, srun --mpi=pmix."""
_CHOSEN: Final = "MPIR_CVAR_PMI_VERSION"
"""Set by who tells MPICH which protocol to speak, whatever it finds."""

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
    return environment.get(_SAYS_HOW_MANY[name][0] if name else "PMIX_RANK", "0") == "0"


def unfit(environment: Mapping[str, str], library: Library) -> str | None:
    """One line for exit 78 when ``library`` cannot find its ranks under this launcher; None if it may.

    Asked before MPI is started, for MPICH then ends the process with a code and a page of its own.
    """
    name = _told(environment)
    launcher = _SAYS_HOW_MANY[name][1] if name else "a PMIx launcher"
    by_pmix = _PMIX in environment
    if library.name == "MPICH" and by_pmix and _CHOSEN not in environment:
        if "PMI_SIZE" in environment:
            return (
                f"two launchers, one inside the other, started this process, one by PMI (PMI_SIZE), one by PMIx "
                f"({_PMIX}), and MPICH takes neither: start it by one of them, or unset {_PMIX}"
            )
        if "pmix" not in library.text.lower():
            return (
                f"{launcher} started this process by PMIx ({_PMIX}), which this MPICH {library.major} was built "
                f"without: launcher and MPI library do not fit; use MPICH's own mpirun, srun --mpi=pmi2, or "
                f"hpcdl run alone, which starts the right mpirun itself"
            )
    if library.name == "Open MPI" and library.major >= 5 and name and int(environment[name]) > 1 and not by_pmix:
        return (
            f"{launcher} started {environment[name]} processes ({name}) without PMIx, by which alone Open MPI "
            f"{library.major} finds its ranks: launcher and MPI library do not fit; use Open MPI's own mpirun, "
            f"srun --mpi=pmix, or hpcdl run alone, which starts the right mpirun itself"
        )
    return None


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
