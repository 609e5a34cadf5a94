"""``hpcdl run`` from a shell, which starts the ranks, and as one rank of a job."""

from __future__ import annotations

import argparse
import datetime as dt
import fcntl
import os
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from hpcdl.exit_codes import FAILED, USAGE, UsageError
from hpcdl.launch import process
from hpcdl.trace.files import TRIALS_FILE, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.mpi.comm import Mpi
    from hpcdl.suite import Suite


def load_suite(options: argparse.Namespace, text: str | None = None) -> Suite:
    """Read and check the suite, or its ``text``. Raises UsageError."""
    from hpcdl import suite
    from hpcdl.launch.testbed import emulated

    testbed = emulated()
    ranks = options.ranks or (testbed["hosts"] if testbed else None)
    text = options.text if text is None else text
    chosen = options.overrides, options.case
    if text is not None:
        return suite.parse(text, str(options.suite), *chosen, ranks=ranks, full=options.full)
    from hpcdl.report.contents import check_answer  # late: ranks that are given the text need no report

    loaded = suite.load(options.suite, *chosen, ranks=ranks, full=options.full)
    check_answer(loaded, options.suite)
    return loaded


def folder_of(options: argparse.Namespace, chosen: Suite) -> Path:
    """Return the run folder: that of -o, else with --resume the newest unfinished one, else a new one."""
    if options.folder is not None:
        return Path(options.folder)
    runs = Path("runs")
    if options.resume:
        unfinished = newest_unfinished(runs, chosen.name, options.launches)
        if unfinished is None:
            raise UsageError(
                f"--resume: {runs}/ has no unfinished run of the suite {chosen.name!r}; name its folder "
                "with -o, or start a new run without --resume"
            )
        print(f"resuming the newest unfinished run: {unfinished}", flush=True)
        return unfinished
    name = f"{chosen.name}-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))  # several may start within a second
    return next(runs / name for name in names if not (runs / name).exists())


def writable_folder(options: argparse.Namespace, chosen: Suite) -> Path:
    """Create the run folder, which may have a run of the same suite with --resume. Raises UsageError."""
    from hpcdl.analysis.run.pooling import runs_in

    folder = folder_of(options, chosen)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"-o {folder}: cannot be written to: {error.strerror}") from None
    if runs_in(folder) != [folder]:
        raise UsageError(f"-o {folder}: has launches; resume them with --launches N, or choose another folder")
    if (folder / "parts").exists():
        if not options.resume:
            raise UsageError(f"-o {folder}: already has a run; add --resume or choose another folder")
        if (other := _suite_and_state(folder)[0]) not in {None, chosen.name}:
            raise UsageError(f"-o {folder}: has a run of the suite {other!r}, and this is {chosen.name!r}")
    return folder


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a run folder by its log, if its file system has locks. Raises UsageError if another process did."""
    try:
        log = open_log(folder / "log.txt")
    except OSError as error:
        raise UsageError(f"-o {folder}: log.txt cannot be written: {error.strerror}") from None
    with os.fdopen(log, "a"):
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"-o {folder}: another hpcdl process is writing to it") from None
        except OSError:
            pass
        yield


def newest_unfinished(runs: Path, suite: str, launches: int = 1) -> Path | None:
    """Return the folder of the most recently written unfinished run of ``suite`` in ``runs``, or None.

    With several ``launches``, a run is a folder of folders ``launch-1``, ``launch-2``, ... A run without a
    finished case does not count, because it has nothing to resume.
    """
    unfinished = []
    for log in runs.glob("*/log.txt" if launches == 1 else "*/launch-1/log.txt"):
        folder = log.parent if launches == 1 else log.parent.parent
        places = [folder] if launches == 1 else [folder / f"launch-{number + 1}" for number in range(launches)]
        states = [_suite_and_state(place) for place in places]
        if suite in {name for name, _ in states} and not all(complete for _, complete in states):
            unfinished.append((log.stat().st_mtime, folder))
    return max(unfinished)[1] if unfinished else None


def _suite_and_state(run: Path) -> tuple[str | None, bool]:
    """Return the name of a run's suite (None without a finished case), and True if all cases are finished."""
    from hpcdl.trace.recorder import TraceError
    from hpcdl.trace.schema import read

    for file in (run / "run.h5", *sorted((run / "parts").glob("*.h5"))):
        with suppress(TraceError, IndexError):  # missing, damaged or without a case: try the next file
            cases = read(file, wanted=())
            return str(cases.described[0].get("suite")), file.name == "run.h5" and cases.complete
    return None, False


def ranks_to_start(options: argparse.Namespace, chosen: Suite) -> int:
    """Return the number of ranks to start. Raises UsageError if -n is too small for the cases, or too large."""
    from hpcdl.cases.keys.key import MAX_RANKS

    needed = max(case.processes for case in chosen.cases)
    if options.ranks is None:
        return needed
    if options.ranks < 1:
        raise UsageError(f"-n {options.ranks}: must be at least 1")
    if options.ranks < needed:
        raise UsageError(
            f"-n {options.ranks}: the suite {chosen.name!r} has cases of {needed} ranks; "
            "use --case or --set case.ranks=..."
        )
    if options.ranks > MAX_RANKS:
        raise UsageError(f"-n {options.ranks}: must be at most {MAX_RANKS}")
    return int(options.ranks)


def check_memory(chosen: Suite, ranks: int) -> None:
    """Raise UsageError if all ranks start on this node and exceed its memory."""
    from hpcdl.suite import lack_of_memory

    if (
        not process.batch_advice(os.environ)
        and (line := lack_of_memory(chosen.cases, ["here"] * ranks)) is not None
    ):
        raise UsageError(line)


def from_shell(options: argparse.Namespace, given: list[str]) -> int:
    """Check everything in this process, then start mpirun."""
    from hpcdl.run.relaunch import run_cases

    chosen = load_suite(options)
    ranks = ranks_to_start(options, chosen)
    check_memory(chosen, ranks)
    folder = writable_folder(options, chosen)
    if options.folder is None:
        given = [*given, "-o", str(folder)]
    return run_cases(chosen, folder, ranks, given, options.given)


def trials_alone(options: argparse.Namespace) -> int:
    """Run the trials of a suite in this process; return the exit code."""
    from hpcdl.run.trials import run_trials

    if options.ranks or options.case_timeout or options.launches != 1 or options.mix_environments:
        raise UsageError(
            "--trials: give -n, --launches, --case-timeout, --mix-environments to the run that follows"
        )
    if options.folder is None:
        raise UsageError("--trials: name the folder of the run that follows with -o")
    chosen = load_suite(options)
    check_memory(chosen, 1)
    folder = writable_folder(options, chosen)
    if (folder / TRIALS_FILE).exists() and not options.resume:
        raise UsageError(f"-o {folder}: already has trials; add --resume or choose another folder")
    with claimed(folder):
        return run_trials(chosen, folder / TRIALS_FILE, options.show)


def in_job(options: argparse.Namespace) -> int:
    """Run the suite as one rank of a job; return the exit code. Raises LaunchError."""
    from hpcdl.launch.mpirun import announce
    from hpcdl.run.failed_cases import CaseFailedError

    library = process.load()
    process.check_launcher(os.environ, library)
    process.start()
    with process.abort_on_error():
        from hpcdl.fabric.mpi.comm import Mpi
        from hpcdl.fabric.mpi.fault_tolerance import depart

        mpi = Mpi()
        options.ranks = mpi.comm.size
        announce(mpi.comm.rank)
    process.check_size(mpi.comm.size, os.environ, library)
    with process.abort_on_error(), ExitStack() as held:
        try:
            code = _on_all(options, mpi, held)
        except CaseFailedError as error:
            if process.STATUS not in os.environ:  # otherwise hpcdl run prints the error and starts the ranks again
                print(f"hpcdl: {error}\nhpcdl: continue with the other cases by --resume", file=sys.stderr)
            process.abort(FAILED)  # the other ranks wait for this one
    return depart(mpi.comm, process.write_status(code, mpi.comm.rank))


def _on_all(options: argparse.Namespace, mpi: Mpi, held: ExitStack) -> int:
    """Read and check the suite on rank 0, broadcast it, and run it on all ranks; return the exit code."""
    from hpcdl.run.case_loop import run
    from hpcdl.run.run_folder import RunOptions

    manner = RunOptions(options.show, options.mix_environments, options.case_timeout, options.finished)
    first, library = mpi.comm.rank == 0, mpi.comm.library
    text, complaint, folder = "", "", Path()
    if first:
        try:
            chosen = load_suite(options)
            text = chosen.text
            folder = writable_folder(options, chosen)
            held.enter_context(claimed(folder))
        except UsageError as error:
            complaint = str(error)
    text, complaint = library.bcast((text, complaint))
    if not complaint:
        try:
            chosen = load_suite(options, text)
        except UsageError as error:
            complaint = f"rank {mpi.comm.rank}: {error}"  # for example a file that only rank 0 can read
        complaint = next(filter(None, library.allgather(complaint)), "")
    if not complaint:
        try:
            return run(chosen, folder, mpi, manner)
        except UsageError as error:
            complaint = str(error)
    if first:
        print(f"hpcdl: {complaint}", file=sys.stderr)
    return USAGE
