"""Process of a rank: the launcher's variables, start and end of the MPI library, signals.

Loading the library identifies it; starting it may end the process. SIGUSR1 requests an orderly end after the
running case. SIGINT, SIGTERM and SIGHUP end a rank, and thereby the job.
"""

import atexit
import faulthandler
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Final, NamedTuple, NoReturn

from hpcdl.exit_codes import FAILED, INTERRUPTED, MISMATCH, USAGE, UsageError

_SIZE_VARIABLES: Final = {
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    "PMI_SIZE": ("PMI_RANK", "a PMI launcher (MPICH's or Intel MPI's mpirun, srun --mpi=pmi2)"),
    "MPI_LOCALNRANKS": ("MPI_LOCALRANKID", "MPICH's mpirun"),
    "PALS_NRANKS": ("PALS_RANKID", "PALS' mpiexec"),
    "SLURM_STEP_NUM_TASKS": ("SLURM_PROCID", "srun"),
}
"""Variable with the number of processes: (variable with this process's number, launcher). The innermost launcher
is first: in a Slurm job, srun starts one daemon of mpirun per node."""
_PMIX: Final = "PMIX_NAMESPACE"
"""Set by launchers with PMIx: Open MPI 5's mpirun, prterun, srun --mpi=pmix."""
_BATCH_JOBS: Final = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PE_HOSTFILE")
"""Set by batch systems in jobs, which may have several nodes."""


def _in_shell(environment: Mapping[str, str]) -> bool:
    """Return True in a Slurm step that is an interactive shell: of salloc, or of srun --pty.

    Steps that are started from a shell inherit its variables, but have tasks of their own, without a terminal.
    """
    if environment.get("SLURM_STEP_ID") == "4294967290":  # the interactive step of salloc
        return True
    try:
        task = Path(f"/proc/{int(environment['SLURM_TASK_PID'])}/stat").read_text(encoding="utf-8")
    except (KeyError, ValueError, OSError):  # no step, or its process has ended
        return False
    return "SLURM_PTY_PORT" in environment and task.rpartition(")")[2].split()[4] != "0"  # tty_nr of proc(5)


def _size_variable(environment: Mapping[str, str]) -> str | None:
    """Return the variable with the innermost launcher's number of processes; None without a launcher."""
    of_slurm = {"SLURM_STEP_NUM_TASKS", *["PMI_SIZE"] * ("MPI_LOCALNRANKS" not in environment)}
    names = [name for name in _SIZE_VARIABLES if environment.get(name, "").isdecimal()]
    by_hand = of_slurm if _in_shell(environment) else ()
    return next((name for name in names if name not in by_hand), None)


def launched(environment: Mapping[str, str]) -> bool:
    """Return True if a launcher started this process."""
    by_srun = environment.get(_PMIX, "").startswith("slurm.")
    by_pmix = "PMIX_RANK" in environment and _PMIX in environment and not (by_srun and _in_shell(environment))
    return by_pmix or _size_variable(environment) is not None


def check_leftover(environment: Mapping[str, str]) -> None:
    """Raise UsageError for variables that are left from a launcher that has ended, as in a notebook."""
    descriptor = environment.get("PMI_FD", "")
    try:
        os.fstat(int(descriptor))
    except ValueError:
        pass
    except OSError:
        raise UsageError(
            f"PMI_FD={descriptor} is not open, so that a launcher which has ended left it; {advice(environment)}"
        ) from None


def advice(environment: Mapping[str, str]) -> str:
    """Return what to do if no launcher started this process, whose variables are those of an ended one."""
    names = [name for name in environment if name in _SIZE_VARIABLES or name.startswith(("PMI_", "PMIX_"))]
    return f"if no launcher started this process: env -u {' -u '.join(names)} hpcdl ..."


def batch_advice(environment: Mapping[str, str]) -> str:
    """Return what to do if mpirun starts no rank: which variable makes it ask a batch system; empty if none."""
    name = next((name for name in _BATCH_JOBS if name in environment), None)
    if name is None:
        return ""
    return (
        f"{name}={environment[name]} is set, so that mpirun asks the batch system to start ranks; where that does "
        f"not answer (a container, a notebook, an ended job): unset ${{!{name.partition('_')[0]}_*}}"
    )


def is_first(environment: Mapping[str, str]) -> bool:
    """Return True on the launcher's first process, even if MPI does not work."""
    name = _size_variable(environment)
    return environment.get(_SIZE_VARIABLES[name][0] if name else "PMIX_RANK", "0") == "0"


class LaunchError(UsageError):
    """Ranks, MPI or a testbed cannot start here; one line with the remedy, on all ranks."""

    def __init__(self, line: str, code: int = USAGE) -> None:
        super().__init__(line)
        self.code = code


class Library(NamedTuple):
    """Identity of an MPI library."""

    name: str
    """"MPICH", "Open MPI", ..."""
    major: int
    text: str
    """Full version text; MPICH's includes its configuration."""


def check_launcher(environment: Mapping[str, str], library: Library) -> None:
    """Raise LaunchError, with exit code 78, if ``library`` cannot find its ranks under this launcher.

    Call it before MPI_Init, because MPICH would end the process with its own exit code and a page of text.
    """
    name = _size_variable(environment)
    launcher = _SIZE_VARIABLES[name][1] if name else "a PMIx launcher"
    by_pmix = _PMIX in environment
    takes_pmix = "pmix" in library.text.lower() or "MPIR_CVAR_PMI_VERSION" in environment  # selects a protocol
    if library.name == "MPICH" and by_pmix and not takes_pmix:
        raise LaunchError(
            f"{launcher} started this process by PMIx ({_PMIX}), but this MPICH {library.major} was built "
            f"without PMIx: launcher and MPI library do not fit; use MPICH's own mpirun, srun --mpi=pmi2, or "
            f"hpcdl run alone, which starts the right mpirun itself",
            MISMATCH,
        )
    if library.name == "Open MPI" and library.major >= 5 and name and int(environment[name]) > 1 and not by_pmix:
        raise LaunchError(
            f"{launcher} started {environment[name]} processes ({name}) without PMIx, which Open MPI "
            f"{library.major} needs to find its ranks: launcher and MPI library do not fit; use Open MPI's own "
            f"mpirun, srun --mpi=pmix, or hpcdl run alone, which starts the right mpirun itself",
            MISMATCH,
        )


def check_size(size: int, environment: Mapping[str, str], library: Library) -> None:
    """Raise LaunchError, with exit code 78, if MPI sees ``size`` = 1 rank but the launcher started more."""
    name = _size_variable(environment)
    if size == 1 and name is not None and int(environment[name]) > 1:
        raise LaunchError(
            f"{_SIZE_VARIABLES[name][1]} started {environment[name]} processes ({name}) but {library.name} sees "
            "one rank: launcher and MPI library do not fit. With Slurm try srun --mpi=pmi2 (MPICH), srun "
            f"--mpi=pmix (Open MPI), or the library's own mpirun inside the job; {advice(environment)}",
            MISMATCH,
        )


def load() -> Library:
    """Load the library that mpi4py uses, without starting MPI. Raises LaunchError."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True  # without initialize, mpi4py would not finalize at exit
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        remedy = "pip install 'hpcdl[mpich]', load your site's MPI module, or set MPI4PY_LIBMPI"
        raise LaunchError(f"no MPI library: {reason}; {remedy}") from None
    _keep_hangup()
    name, version = MPI.get_vendor()
    return Library(name, version[0], MPI.Get_library_version())


def start(limit: float = 300.0) -> None:
    """Start MPI after :func:`load`; a thousand ranks need less than a minute.

    Ends the process after ``limit`` seconds, with a traceback that names this function. Another process of the job
    may have failed before, which launchers do not always notice.
    """
    from mpi4py import MPI

    faulthandler.dump_traceback_later(limit, exit=True)  # a Python thread could not run: MPI_Init keeps the GIL
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # check_size reports it
        # other threads call no MPI function, and locks of MPI_THREAD_MULTIPLE cost 2 us in a short collective
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    faulthandler.cancel_dump_traceback_later()
    _keep_hangup()


def _keep_hangup() -> None:
    """Install this process's handler of SIGHUP again, which UCX takes for its debugger."""
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGHUP))


def abort(code: int) -> NoReturn:
    """End all ranks of the job; this one too if the library's own call returns, as MPICH's does now and then."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(code)
    os._exit(code)


@contextmanager
def abort_on_error() -> Iterator[None]:
    """Context manager: an exception in the body ends all ranks, because others would wait for this one.

    An error of the system, such as a full disk, is the exit code of rank 0 too, so that nothing is started again.
    """
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - also KeyboardInterrupt and SystemExit
        from mpi4py import MPI

        if isinstance(error, (MemoryError, OSError)):  # a message is enough, the program is not at fault
            rank = MPI.COMM_WORLD.rank
            write_status(FAILED, rank, f"hpcdl: rank {rank}: {' '.join(str(error).split())}")
        else:
            traceback.print_exc()
        abort(FAILED)


_stop = Event()

STATUS: Final = "HPCDL_STATUS_FILE"
"""File for rank 0's exit code; launchers print a page of text for any code except 0.

Its further lines are an error, which ``hpcdl run`` prints: a launcher may lose what the rank that aborts prints.
"""
RELAUNCH: Final = 76
"""Status in place of an exit code: a process failed as a case required, and the remaining cases need all ranks."""
HEARTBEAT, STOP = "alive", "stop"
"""Files in its folder: rank 0 touches one regularly; the other asks the ranks to stop after the running case."""


def status_folder() -> Path | None:
    """Return the folder of the ``hpcdl run`` that started the ranks, on its host; None under another launcher."""
    place = os.environ.get(STATUS)
    return None if place is None else Path(place).parent


def write_status(code: int, rank: int, error: str = "") -> int:
    """Write rank 0's exit code and error to the status file; return the code that this process exits with.

    The error is printed where there is no such file, or no room for it.
    """
    place = os.environ.get(STATUS)
    with suppress(OSError):  # the disk is full
        if place is not None and rank == 0:
            Path(place).write_text(f"{code}\n{error}", encoding="utf-8")
            error = ""
    if error:
        print(error, file=sys.stderr)
    if place is None:
        return INTERRUPTED if code == RELAUNCH else code
    return 0


def prepare() -> None:
    """Install the signal handlers of this process; a rank also watches its parent, the launcher.

    Call it before slow imports, because SIGUSR1 kills a process without a handler.
    """
    signal.signal(signal.SIGUSR1, request_stop)
    atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)  # Python removes its handlers before it ends
    if not launched(os.environ):
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # after KeyboardInterrupt this rank would wait in MPI_Finalize for the other ranks
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with, args=(os.getppid(),), name="hpcdl-parent", daemon=True).start()


def request_stop(_number: int = signal.SIGUSR1, _frame: object = None) -> None:
    """Request the end of the run after the running case; a signal handler."""
    _stop.set()


def stop_requested() -> bool:
    """Return True if this process, or the ``hpcdl run`` that started the ranks, has received SIGUSR1."""
    folder = status_folder()
    return _stop.is_set() or (folder is not None and (folder / STOP).exists())


def _end_with(parent: int) -> None:
    """End this process when ``parent`` has ended; a killed launcher cannot end its ranks."""
    while os.getppid() == parent:
        sleep(2)
    os._exit(INTERRUPTED)


@contextmanager
def if_killed(*command: str) -> Iterator[None]:
    """Context manager: a waiting shell runs ``command`` if this process is killed in the body."""
    with subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _ || exec "$@"', "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # signals to this process's group must not reach it
    ) as waiting:
        try:
            yield
        finally:
            waiting.communicate(b"\n")


def child_preparation(number: int = signal.SIGTERM) -> Callable[[], None]:
    """Return the function that a launcher's process calls between fork and exec.

    The launcher then receives the signal ``number`` when this process ends in any way. It ignores SIGUSR1, which
    batch systems send to all processes, until it installs its own handler. Linux only.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare_child() -> None:
        prctl(1, number)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # the parent ended before prctl
            os._exit(INTERRUPTED)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    return prepare_child
