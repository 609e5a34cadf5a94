"""Run the cases of a suite in this MPI job; write a run folder."""

import os
import signal
import traceback
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
import threadpoolctl

from hpcdl.cases.keys.key import varies
from hpcdl.cases.keys.scheme import traits_of
from hpcdl.exit_codes import FAILED, INTERRUPTED, OK
from hpcdl.fabric.faults import Failure as PlannedFailure
from hpcdl.fabric.mpi.comm import Mpi, MpiComm, library_version
from hpcdl.fabric.mpi.fault_tolerance import FaultTolerant
from hpcdl.fabric.mpi.waits import waits
from hpcdl.launch.disturbance import Usage, columns
from hpcdl.launch.mpirun import fault_tolerance_obstacle
from hpcdl.launch.process import RELAUNCH, advice, heartbeat_file
from hpcdl.nn.threads import threads
from hpcdl.run import failed_cases
from hpcdl.run.failed_cases import CaseFailedError, Failure
from hpcdl.run.job import Job
from hpcdl.run.run_folder import RunFolder, draw_of, part_name
from hpcdl.run.watchdog import Watchdog, append
from hpcdl.suite import Case, Suite, UsageError, lack_of_memory
from hpcdl.trace.recorder import Packed, Recorder, Scalar, from_bytes, to_bytes
from hpcdl.training.parts.journal import Journal


def run(
    suite: Suite,
    folder: Path,
    mpi: Mpi,
    *,
    resume: bool,
    show: Callable[[str], None],
    finished: Callable[[Path], None] | None = None,
    case_timeout: float | None = None,
    mix_environments: bool = False,
) -> int:
    """Run all cases of ``suite`` that ``folder`` does not hold yet; return the exit code. Collective.

    Rank 0 writes one file per finished case into ``folder``/parts, and at the end ``run.h5`` and ``report.md``.
    ``show`` prints a line for the user; ``finished`` prints a case of its part, instead of the line that it has
    ended and of the summary. ``case_timeout`` (s) replaces the time limits of the suite. With
    ``mix_environments`` the finished cases may have run on another machine or library.

    Raises UsageError if the job cannot run the suite, CaseFailedError if a case failed on this rank alone.
    """
    wanted = max(case.processes for case in suite.cases)
    if wanted > mpi.comm.size:
        largest = next(case.name for case in suite.cases if case.processes == wanted)
        has = f"case {largest!r} needs {wanted} ranks and this job has {mpi.comm.size}"
        alone = f"; {advice(os.environ)}" if mpi.comm.size == 1 else ""
        raise UsageError(f"{has}; start more ranks, or choose cases with --case or --set case.ranks=...{alone}")
    rank = mpi.comm.rank
    job: Job | None = None

    def progress() -> Hashable:
        interpreter = job.mpi if job else mpi
        return interpreter.messages, interpreter.bytes, interpreter.compute_ns, len(interpreter.events or ())

    watchdog = Watchdog(
        rank,
        lambda: waits(job.mpi if job else mpi),
        progress,
        heartbeat=heartbeat_file() if rank == 0 else None,
    )
    job = Job(mpi)
    library = job.world.library
    shortage = library.bcast(lack_of_memory(suite.cases, job.hosts) if job.hosts else None)
    if shortage is not None:
        raise UsageError(shortage)
    watchdog.folder = root = Path(library.bcast(str(folder.absolute()) if rank == 0 else ""))
    job.draw = library.bcast(draw_of(root, os.environ))
    run_folder = None
    if rank == 0:
        mixed = mix_environments
        run_folder = RunFolder(
            suite, folder, job, resume=resume, show=show, finished=finished, mix_environments=mixed
        )
    job.world.sleeping_barrier()  # rank 0 has read the finished cases
    refusal = library.bcast(run_folder.refusal if run_folder else None)
    if refusal is not None:
        raise UsageError(refusal)
    todo: list[int] = library.bcast(run_folder.todo if run_folder else None)
    misplaced: list[int] = library.bcast(_misplaced(suite, todo, job.hosts) if run_folder else None)
    may_fail = [number for number in todo if suite.cases[number].failure and number not in misplaced]
    obstacle = fault_tolerance_obstacle(os.environ, library_version()["library"]) if may_fail else None
    if run_folder:
        run_folder.refuse(misplaced, "its aggregation needs all ranks on one host, and they are on several")
        run_folder.refuse(may_fail if obstacle else [], obstacle or "")
    # planned failures come last: after one, the remaining cases need another job, with all ranks
    todo = [number for number in todo if number not in (*may_fail, *misplaced)] + ([] if obstacle else may_fail)
    while todo:
        number = todo.pop(0)
        case = suite.cases[number]
        if job.should_stop():
            _finish(job, run_folder, "interrupted")
            return INTERRUPTED
        job.prepare(case, run_folder.show if run_folder else lambda _line: None)
        comm = job.communicator(case.processes)
        if run_folder:
            run_folder.begin(number, case)
        part = root / "parts" / part_name(number, case)
        limit = case.timeout_seconds if case_timeout is None else case_timeout
        watchdog.begin(case.name, part, limit=limit, has_programs=comm is not None)
        traces, failures = _run_case(case, job, comm, part)
        watchdog.end(case.name)
        if run_folder and traces is not None:
            run_folder.add(number, case, *traces)
        if run_folder and failures:
            run_folder.fail(number, failures)
        if job.lost_ranks and todo:
            _finish(job, run_folder, "a process failed")
            return RELAUNCH
    failed = _finish(job, run_folder)
    job.world.sleeping_barrier()
    return FAILED if job.world.library.bcast(failed) else OK


def _finish(job: Job, run_folder: RunFolder | None, unfinished: str | None = None) -> bool:
    """See :meth:`RunFolder.finish`, on rank 0. Collective."""
    counters = job.link_counters()
    return run_folder.finish(counters, unfinished) if run_folder else False


def _misplaced(suite: Suite, numbers: Sequence[int], hosts: Sequence[tuple[str, str]]) -> list[int]:
    """Return the numbers of cases whose aggregation needs ranks of one host, and whose ranks are on several."""
    return [
        number
        for number in numbers
        if (choice := suite.cases[number].setting("aggregation")) is not None
        and traits_of(choice).one_host
        and len(set(hosts[: suite.cases[number].processes])) > 1
    ]


def _run_case(
    case: Case, job: Job, comm: MpiComm | None, part: Path
) -> tuple[tuple[dict[str, Scalar], list[Packed]] | None, Sequence[Failure]]:
    """Run a case on the ranks of ``comm``, while the others sleep; return results and traces on rank 0.

    If the case failed and all ranks have left it, return the failures on rank 0. Raises CaseFailedError if the
    case failed on this rank and others still run it.
    """
    failure: Failure | None = None
    begin = job.counters.sample()
    try:
        result, mine, usage = ({}, list[bytes](), None) if comm is None else _run_here(case, job, comm)
    except BaseException as error:
        details = "".join(traceback.format_exception(error))
        failure = Failure(case.name, failed_cases.describe(error), job.world.rank, details)
        failed_cases.record(part, failure)
        if not isinstance(error, Exception):  # KeyboardInterrupt ends the job, not only the case
            raise
    if case.failure:
        if failure:
            _end_job(failure, part.parent.parent)
        job.remove_failed_ranks()
    else:
        failed = job.failed_ranks(failed=failure is not None)
        if failure and failed is None:
            _end_job(failure, part.parent.parent)
        if failed:
            return None, job.after_failure(failure)
    gathered = job.world.library.gather((job.rank, mine, usage or job.counters.usage(begin, threads=0)))
    if gathered is None:
        return None, ()
    traces = {rank: of_rank for rank, of_rank, _ in gathered}
    absent = [rank for rank in range(case.processes) if rank not in traces]
    if planned := case.failure:
        result["process_failure"] = ", ".join(
            str(planned) if rank == planned.rank else f"rank {rank}" for rank in absent
        )
    nothing = [to_bytes(Recorder().pack())]
    every = [from_bytes(trace) for rank in range(case.processes) for trace in traces.get(rank, nothing)]
    if not absent and len(every) == case.processes:  # a simulated case has traces of ranks without processes
        for packed, counted in zip(every, columns([usage for _, _, usage in gathered]), strict=False):
            packed |= {name: np.array(value) for name, value in counted.items()}
    return (result, every), ()


def _end_job(failure: Failure, folder: Path) -> None:
    append(folder / "log.txt", f"FAILED {failure}\n{failure.details}")
    raise CaseFailedError(f"FAILED {failure}")


def _run_here(case: Case, job: Job, comm: MpiComm) -> tuple[dict[str, Scalar], list[bytes], Usage]:
    """Run a case on this rank; return its results, its traces, and the use of its cores.

    There is one trace, or one per rank that it simulates.
    """
    mpi = job.mpi
    trace = case.spec.trace
    recorder = Recorder(events=trace != "steps")
    recorder.clock_offset_ns = job.clock_offset_ns

    def before_step(step: int) -> None:
        if trace == "alternating":
            mpi.events = None if step % 2 else recorder.events
        if case.failure == PlannedFailure(rank=comm.rank, step=step):
            os.kill(os.getpid(), signal.SIGKILL)

    # a training that diverges overflows; the record shows it, and numpy would warn on each rank at each step
    allowed = case.spec.threads
    kernels = getattr(case.spec, "kernels", None)
    # threads of BLAS would wait actively on the cores of kernels' threads
    of_blas = 1 if kernels is not None and kernels.divides_products else allowed
    with (
        threadpoolctl.threadpool_limits(of_blas, "blas"),
        threads(allowed),
        np.errstate(all="ignore"),
    ):
        journal = Journal(recorder, mpi.counters, before_step, job.draw)
        program = case.module.program(case.spec, journal)
        mpi.awake(comm)
        begin = job.counters.sample()  # after all ranks of the case have come
        mpi.events = recorder.events
        try:
            result = mpi.run(program(FaultTolerant(comm) if case.failure else comm))
        finally:
            mpi.events = None
        usage = job.counters.usage(begin, allowed)
    if varies(case.spec):
        result["draw"] = job.draw
    return result, [to_bytes(part.pack()) for part in recorder.virtual or [recorder]], usage
