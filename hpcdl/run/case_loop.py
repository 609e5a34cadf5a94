"""Run the cases of a suite in this MPI job; write a run folder."""

import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcdl.cases.keys.key import varies
from hpcdl.cases.keys.scheme import traits_of
from hpcdl.exit_codes import FAILED, INTERRUPTED, OK, UsageError
from hpcdl.fabric.mpi.comm import Mpi, MpiComm, library_version
from hpcdl.fabric.mpi.fault_tolerance import FaultTolerant
from hpcdl.launch.counters import Usage, columns, health_of_case
from hpcdl.launch.mpirun import fault_tolerance_obstacle
from hpcdl.launch.process import HEARTBEAT, RELAUNCH, advice, status_folder
from hpcdl.nn.backend import computing
from hpcdl.run import failed_cases
from hpcdl.run.failed_cases import CaseFailedError, Failure
from hpcdl.run.job import Job
from hpcdl.run.run_folder import RunFolder, RunOptions, draw_of, part_name
from hpcdl.run.watchdog import Watchdog, append
from hpcdl.suite import Case, Suite, lack_of_memory
from hpcdl.trace.recorder import Packed, Recorder, Scalar, from_bytes, to_bytes
from hpcdl.training.parts.journal import Journal


def run(suite: Suite, folder: Path, mpi: Mpi, options: RunOptions) -> int:
    """Run all cases of ``suite`` that ``folder`` does not hold yet; return the exit code. Collective.

    Rank 0 writes one file per finished case into ``folder``/parts, and at the end ``run.h5`` and ``report.md``.
    Raises UsageError if the job cannot run the suite, CaseFailedError if a case failed on this rank alone.
    """
    largest = max(suite.cases, key=lambda case: case.processes)
    if largest.processes > mpi.comm.size:
        alone = f"; {advice(os.environ)}" if mpi.comm.size == 1 else ""
        raise UsageError(
            f"case {largest.name!r} needs {largest.processes} ranks and this job has {mpi.comm.size}; start more "
            f"ranks, or choose cases with --case or --set case.ranks=...{alone}"
        )
    status = status_folder() if mpi.comm.rank == 0 else None
    watchdog = Watchdog(mpi.comm.rank, status and status / HEARTBEAT)
    job = Job(mpi)
    job.refuse(lack_of_memory(suite.cases, job.hosts) if job.hosts else None)
    watchdog.folder = root = Path(job.from_first(str(folder.absolute())))
    job.draw = job.from_first(draw_of(root, os.environ))
    run_folder = RunFolder(suite, folder, job, options) if job.rank == 0 else None
    job.world.sleeping_barrier()  # rank 0 has read the finished cases
    job.refuse(run_folder.refusal if run_folder else None)
    todo = job.from_first(_cases_to_run(suite, run_folder, job.hosts) if run_folder else [])
    while todo:
        if job.should_stop():
            _finish(job, run_folder, "interrupted")
            return INTERRUPTED
        number = todo.pop(0)
        case = suite.cases[number]
        job.prepare(case, run_folder.show if run_folder else lambda _line: None)
        comm = job.communicator(case.processes)
        if run_folder:
            run_folder.begin(number, case)
        part = root / "parts" / part_name(number, case)
        limit = case.timeout_seconds if options.case_timeout is None else options.case_timeout
        watchdog.begin(case.name, part, limit, job.mpi if comm else None)
        results, traces, failures = _run_case(case, job, comm, part, run_folder)
        watchdog.end(case.name)
        if run_folder and failures:
            run_folder.fail(number, failures)
        elif run_folder:
            run_folder.add(number, case, results, traces)
        if job.world.size < job.size and todo:  # processes have failed
            _finish(job, run_folder, "a process failed")
            return RELAUNCH
    failed = _finish(job, run_folder)
    job.world.sleeping_barrier()
    return FAILED if job.from_first(failed) else OK


def _cases_to_run(suite: Suite, run_folder: RunFolder, hosts: Sequence[tuple[str, str]]) -> list[int]:
    """Return the numbers of the cases to run, in this order; record why others cannot run here."""
    misplaced = _misplaced(suite, run_folder.todo, hosts)
    run_folder.refuse(misplaced, "its aggregation needs all ranks on one host, and they are on several")
    todo = [number for number in run_folder.todo if number not in misplaced]
    may_fail = [number for number in todo if suite.cases[number].failure]
    obstacle = fault_tolerance_obstacle(os.environ, library_version()["library"]) if may_fail else None
    if obstacle:
        run_folder.refuse(may_fail, obstacle)
    # planned failures come last: after one, the remaining cases need another job, with all ranks
    return [number for number in todo if number not in may_fail] + ([] if obstacle else may_fail)


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
    case: Case, job: Job, comm: MpiComm | None, part: Path, run_folder: RunFolder | None
) -> tuple[dict[str, Scalar], list[Packed], Sequence[Failure]]:
    """Run a case on the ranks of ``comm``, while the others sleep; return results, traces and failures, on rank 0.

    There are failures only if all ranks left the case. CaseFailedError: it failed here, and others still run it.
    """
    failure: Failure | None = None
    begin = job.counters.sample()
    try:
        result, mine, usage = ({}, list[bytes](), None) if comm is None else _run_here(case, job, comm, run_folder)
    except BaseException as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        failure = Failure(case.name, line, job.world.rank, "".join(traceback.format_exception(error)))
        failed_cases.record(part, failure)
        if not isinstance(error, Exception):  # KeyboardInterrupt ends the job, not only the case
            raise
    failed = None if case.failure else job.failed_ranks(failed=failure is not None)
    if failure and failed is None:
        append(part.parent.parent / "log.txt", f"FAILED {failure}\n{failure.details}")
        raise CaseFailedError(f"FAILED {failure}")
    if case.failure:
        job.remove_failed_ranks()
    elif failed:
        return {}, [], job.after_failure(failure)
    gathered = job.world.library.gather((job.rank, mine, usage or job.counters.usage(begin, threads=0)))
    if gathered is None:
        return {}, [], ()
    traces = {rank: of_rank for rank, of_rank, _ in gathered}
    absent = [rank for rank in range(case.processes) if rank not in traces]
    nodes = {job.host_names[rank]: usage for rank, _, usage in gathered if usage.health}
    result |= health_of_case(
        {host: usage.health for host, usage in nodes.items() if usage.health},
        {host: usage.place.machine for host, usage in nodes.items()},
    )
    if planned := case.failure:
        failed_ranks = (planned.of([rank]) if rank in planned.ranks else f"rank {rank}" for rank in absent)
        result["process_failure"] = ", ".join(failed_ranks)
    nothing = [to_bytes(Recorder().pack())]
    every = [from_bytes(trace) for rank in range(case.processes) for trace in traces.get(rank, nothing)]
    if not absent and len(every) == case.processes:  # a simulated case has traces of ranks without processes
        for packed, counted in zip(every, columns([usage for _, _, usage in gathered]), strict=False):
            packed |= {name: np.array(value) for name, value in counted.items()}
    return result, every, ()


def _run_here(
    case: Case, job: Job, comm: MpiComm, run_folder: RunFolder | None
) -> tuple[dict[str, Scalar], list[bytes], Usage]:
    """Return a case's results on this rank, its traces, one per simulated rank, and the use of its cores."""
    mpi = job.mpi
    trace = case.spec.trace
    recorder = Recorder(events=trace != "steps")
    recorder.clock_offset_ns = job.clock_offset_ns

    def before_step(step: int) -> None:
        if run_folder:
            run_folder.show_step(step, recorder.evaluations)
        if trace == "alternating":
            mpi.events = None if step % 2 else recorder.events
        if case.failure and case.failure.comes(comm.rank, step):
            os.kill(os.getpid(), signal.SIGKILL)

    allowed = case.spec.threads
    with computing(getattr(case.spec, "kernels", None), allowed):
        journal = Journal(recorder, mpi.counters, before_step, job.draw)
        program = case.module.program(case.spec, journal)
        sensors = None if case.setting("network") else job.sensors
        node = sensors.read() if sensors else None
        mpi.awake(comm)
        begin = job.counters.sample()  # after all ranks of the case have come
        mpi.events = recorder.events
        try:
            result = mpi.run(program(FaultTolerant(comm) if case.failure else comm))
        finally:
            mpi.events = None
        usage = job.counters.usage(begin, allowed)
        if sensors and node:
            usage = usage._replace(health=sensors.health(node))
    if varies(case.spec):
        result["draw"] = job.draw
    return result, [to_bytes(part.pack()) for part in recorder.virtual or [recorder]], usage
