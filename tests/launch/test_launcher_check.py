"""A launcher with many processes but one MPI rank is detected; other situations are not.

The environments are Slurm 22.05's, MPICH 5.0's and Open MPI 5.0's, as found in jobs on two nodes with four tasks.
"""

import os
import pty
import signal
import time

import pytest

from hpcdl.exit_codes import UsageError
from hpcdl.launch import process
from hpcdl.launch.process import LaunchError, Library, check_launcher, check_size, is_first, launched


def of_slurm(**variables):
    return {f"SLURM_{name}": value for name, value in variables.items()}


IN_JOB = of_slurm(JOB_ID="1", NTASKS="4", NNODES="2", PROCID="0", NODEID="0")
IN_STEP = {**IN_JOB, **of_slurm(STEP_ID="0", STEP_NUM_TASKS="4", STEP_NUM_NODES="2")}
BY_PMI = {"PMI_SIZE": "4", "PMI_RANK": "0"}
OF_OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}
SHELLS = {
    "a workstation": {},
    "an sbatch script": IN_JOB,
    "a shell of salloc": {**IN_STEP, **of_slurm(STEP_ID="4294967290", STEP_NUM_TASKS="1")},
    "a rank without a namespace of PMIx": {"PMIX_RANK": "0"},
    "leftovers": {"PMI_SIZE": "", "SLURM_STEP_NUM_TASKS": ""},
}
MANY = {
    "srun --mpi=none": (IN_STEP, "srun started 4 processes (SLURM_STEP_NUM_TASKS)"),
    "srun --mpi=pmi2": ({**IN_STEP, **BY_PMI}, "(PMI_SIZE)"),
    "srun --mpi=pmix": ({**IN_STEP, "PMIX_RANK": "0"}, "srun started 4 processes"),
    "Open MPI's mpirun": ({**OF_OPEN_MPI, "PMIX_RANK": "0"}, "Open MPI's mpirun started 4 processes"),
    "MPICH's mpirun": ({**BY_PMI, "MPI_LOCALNRANKS": "2"}, "(PMI_SIZE)"),
    "MPICH's mpirun in a job of one node": (
        {**IN_STEP, **of_slurm(STEP_NUM_TASKS="1"), **BY_PMI, "MPI_LOCALNRANKS": "4"},
        "(PMI_SIZE)",
    ),
    "PALS' mpiexec": ({"PALS_NRANKS": "4", "PALS_RANKID": "0"}, "PALS' mpiexec started 4 processes"),
}
TWO_DAEMONS = {**IN_STEP, "SLURM_STEP_NUM_TASKS": "2"}
ONE_OF_OPEN_MPI = {**OF_OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"}
ALONE = {
    "mpirun -n 1": {**BY_PMI, "PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"},
    "Open MPI's mpirun -n 1 in a job, its daemons on two nodes": {**TWO_DAEMONS, **ONE_OF_OPEN_MPI},
    "MPICH's mpirun -n 1 in a job, a proxy on each of two nodes": {**TWO_DAEMONS, **BY_PMI, "PMI_SIZE": "1"},
    "srun -n 1": {**IN_STEP, "SLURM_STEP_NUM_TASKS": "1"},
}


def refusal(check, *arguments):
    with pytest.raises(LaunchError) as refused:
        check(*arguments)
    assert refused.value.code == 78
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_outside_a_launcher_hpcdl_starts_its_own():
    for environment in SHELLS.values():
        assert not launched(environment)
        assert is_first(environment)
        check_size(1, environment, MPICH)


def test_one_rank_of_many_processes_is_a_mismatch_and_a_single_one_is_not():
    for environment, said in MANY.values():
        assert launched(environment)
        complaint = refusal(check_size, 1, environment, MPICH)
        assert said in complaint
        assert "MPICH sees one rank" in complaint
        assert "--mpi=pmi2" in complaint
        check_size(4, environment, MPICH)
    for environment in ALONE.values():
        assert launched(environment)
        check_size(1, environment, OPEN_MPI)


def test_a_shell_of_srun_is_known_by_its_terminal():
    """``srun -n 4 --pty bash`` with PMI; mpirun and srun within it have tasks, or a number of local ranks."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.write(1, b"!")
        time.sleep(60)
    os.read(terminal, 1)
    shell = {**IN_STEP, **BY_PMI, **of_slurm(PTY_PORT="1", TASK_PID=str(pid))}
    try:
        assert not launched(shell)
        assert launched({**shell, "MPI_LOCALNRANKS": "4"})
        assert launched({**shell, "SLURM_TASK_PID": "1"})
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_variables_of_a_launcher_that_has_ended_are_named():
    variables = {"PMI_FD": "999", "PMI_SIZE": "1", "PATH": "/bin"}
    with pytest.raises(UsageError, match=r"env -u PMI_FD -u PMI_SIZE hpcdl \.\.\.$"):
        process.check_leftover(variables)
    process.check_leftover({**variables, "PMI_FD": "0"})
    assert "unset ${!SLURM_*}" in process.batch_advice(IN_JOB)


MPICH = Library("MPICH", 5, "MPICH Version: 5.0.2\nMPICH configure: --with-device=ch4:ucx,ofi")
MPICH_PMIX = Library("MPICH", 5, "MPICH Version: 5.0.2\nMPICH configure: --with-pmix=/usr")
OPEN_MPI = Library("Open MPI", 5, "Open MPI v5.0.11")
BY_PMIX = {"PMIX_NAMESPACE": "prterun-h-1@1", "PMIX_RANK": "0"}
BY_OPEN_MPI = {**BY_PMIX, **OF_OPEN_MPI}


def test_incompatible_launchers_are_reported_before_start():
    for library, environment, said in [
        (MPICH, BY_OPEN_MPI, "Open MPI's mpirun started this process by PMIx (PMIX_NAMESPACE), but this MPICH 5"),
        (MPICH, {**IN_STEP, **BY_PMIX}, "srun started this process by PMIx"),
        (MPICH, BY_PMIX, "a PMIx launcher started this process"),
        (OPEN_MPI, BY_PMI, "started 4 processes (PMI_SIZE) without PMIx"),
        (OPEN_MPI, IN_STEP, "srun started 4 processes (SLURM_STEP_NUM_TASKS) without PMIx"),
    ]:
        assert said in refusal(check_launcher, environment, library)


def test_compatible_launchers_are_accepted():
    for library, environment in [
        (MPICH, BY_PMI),
        (MPICH, IN_STEP),  # detected once MPI has started
        (MPICH, {**BY_PMIX, "MPIR_CVAR_PMI_VERSION": "pmi1"}),
        (MPICH_PMIX, BY_OPEN_MPI),
        (OPEN_MPI, BY_OPEN_MPI),
        (OPEN_MPI, {**IN_STEP, **BY_PMIX}),
        (OPEN_MPI, {**BY_PMI, "PMI_SIZE": "1"}),
        (Library("Open MPI", 4, ""), {**IN_STEP, **BY_PMI}),
        (Library("Intel MPI", 2021, ""), BY_PMIX),
        *((library, environment) for library in (MPICH, OPEN_MPI) for environment in SHELLS.values()),
    ]:
        check_launcher(environment, library)


def test_first_process():
    names = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK", "PALS_NRANKS": "PALS_RANKID"}
    for size, rank in {**names, "SLURM_STEP_NUM_TASKS": "SLURM_PROCID"}.items():
        assert [is_first({size: "3", rank: str(number)}) for number in range(3)] == [True, False, False]
