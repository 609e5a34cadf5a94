"""``hpcdl run``: run a suite, as the shell's one process or as one of a job's ranks."""

from __future__ import annotations

import datetime as dt
import os
import sys
import tempfile
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.exit_codes import FAILED, MISMATCH, OK, USAGE

if TYPE_CHECKING:
    import argparse

    from hpcdl.fabric.mpi import Mpi
    from hpcdl.suite import Suite


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "run",
        help="run a suite",
        description="Run a suite. Outside a launcher it starts mpirun itself; inside mpirun or srun it uses the "
        "ranks it is given, smaller cases on the first ones of them.",
    )
    parser.add_argument("suite", type=Path, metavar="SUITE.toml")
    parser.add_argument(
        "-n", "--ranks", type=int, metavar="RANKS", help="ranks to start (default: what the suite needs)"
    )
    parser.add_argument(
        "-o", dest="folder", type=Path, metavar="DIR", help="run folder (default: runs/SUITE-TIME)"
    )
    parser.add_argument("--case", metavar="GLOB", help="only cases whose name matches")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="case.KEY=VALUE",
        help="change a key of every case that has it; values as in TOML",
    )
    parser.add_argument("--resume", action="store_true", help="keep the finished cases of DIR and run the others")
    parser.add_argument("--dry-run", action="store_true", help="check everything, list the cases, run nothing")
    parser.add_argument(
        "--launches", type=int, default=1, metavar="N", help="start the ranks N times anew, into DIR/launch-1, ..."
    )
    parser.set_defaults(command=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.launch.guard import is_first, launched

    if options.dry_run:
        return _dry_run(options) if is_first(os.environ) else OK
    if options.launches != 1:
        return _several(options, inside=launched(os.environ))
    return _in_job(options) if launched(os.environ) else _from_shell(options, options.given)


def _several(options: argparse.Namespace, *, inside: bool) -> int:
    """Launch the suite several times, each into a folder of its own, and report the launches together."""
    from hpcdl.commands.report import rendered, write
    from hpcdl.suite import UsageError

    if options.launches < 1:
        raise UsageError(f"--launches {options.launches}: must be at least 1")
    if inside:
        raise UsageError(
            f"--launches {options.launches}: a job is one launch: submit several, and then hpcdl report --together"
        )
    folder = _folder(options, _suite(options))
    runs = [folder / f"launch-{number}" for number in range(1, options.launches + 1)]
    worst = OK
    for run in runs:
        options.folder, options.launches = run, 1
        code = _from_shell(options, [*options.given, "-o", str(run), "--launches", "1"])
        if code not in {OK, FAILED}:
            return code
        worst = max(worst, code)
    page = folder / "report.md"
    write(rendered(runs, "md", launches=True), page)
    print(f"launches together: {page}")
    return worst


def _suite(options: argparse.Namespace) -> Suite:
    from hpcdl import suite

    found = suite.load(options.suite, options.overrides)
    return found.matching(options.case) if options.case else found


def _dry_run(options: argparse.Namespace) -> int:
    """List the cases. Raises UsageError, after the list, if they would run on this node and do not fit into it."""
    from hpcdl.launch.guard import in_batch_job, launched
    from hpcdl.launch.memory import lack_of_memory
    from hpcdl.suite import UsageError

    chosen = _suite(options)
    for case in chosen.cases:
        print(f"{case.name}  ({case.processes} ranks, {case.digest})")
    most = max(case.processes for case in chosen.cases)
    count = len(chosen.cases)
    print(f"{count} case{'s' * (count != 1)}, {most} rank{'s' * (most != 1)}", flush=True)
    alone = not launched(os.environ) and not in_batch_job(os.environ)
    if alone and (line := lack_of_memory(chosen.cases, ["here"] * most)) is not None:
        raise UsageError(line)
    return OK


def _from_shell(options: argparse.Namespace, given: list[str]) -> int:
    """Check everything here, where one process can say what is wrong, then start mpirun."""
    from hpcdl.launch.mpirun import AGAIN, NoLauncher, self_launch
    from hpcdl.suite import UsageError

    chosen = _suite(options)
    needed = max(case.processes for case in chosen.cases)
    ranks = needed if options.ranks is None else options.ranks
    if ranks < 1:
        raise UsageError(f"-n {ranks}: must be at least 1")
    if ranks < needed:
        raise UsageError(
            f"-n {ranks}: the suite {chosen.name!r} has cases of {needed} ranks; see --case and --set"
        )
    folder = _writable(_folder(options, chosen), chosen.name, resume=options.resume)
    if options.folder is None:
        given = [*given, "-o", str(folder)]
    with tempfile.TemporaryDirectory() as place:
        try:
            status, tolerant = Path(place) / "status", any(case.mortal for case in chosen.cases)
            code = self_launch(ranks, given, status, tolerant=tolerant, typed=options.given)
            while code == AGAIN:
                status.unlink()
                code = self_launch(ranks, [*given, "--resume"], status, tolerant=tolerant, typed=options.given)
        except NoLauncher as error:
            raise UsageError(str(error)) from None
    if code is None:
        print("hpcdl: the ranks ended early; finished cases are kept, go on with --resume", file=sys.stderr)
        return FAILED
    return code


def _in_job(options: argparse.Namespace) -> int:
    """One of the job's ranks."""
    from hpcdl.launch.guard import is_first, mismatch, unfit
    from hpcdl.launch.library import load, start
    from hpcdl.launch.mpirun import leave_status

    library = load()
    complaint = unfit(os.environ, library)
    if not complaint:
        start()
        from hpcdl.fabric.mpi import Mpi
        from hpcdl.fabric.mpi_failure import depart

        mpi = Mpi()
        complaint = mismatch(mpi.comm.size, os.environ, library.name)
    if complaint:
        if not is_first(os.environ):
            return OK  # a launcher may end the others when one fails, and the first has yet to speak
        print(f"hpcdl: {complaint}", file=sys.stderr)
        return leave_status(MISMATCH, 0)
    try:
        with ExitStack() as held:
            code = _on_all(options, mpi, held)
    except Exception as error:  # noqa: BLE001 - all of it ends the job
        if isinstance(error, (MemoryError, OSError)):  # the machine's fault, not the program's
            print(f"hpcdl: rank {mpi.comm.rank}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        mpi.abort(FAILED)  # the other ranks wait for this one, and would for ever
        return FAILED
    return depart(mpi.comm, leave_status(code, mpi.comm.rank))


def _on_all(options: argparse.Namespace, mpi: Mpi, held: ExitStack) -> int:
    """Rank 0 reads and checks the suite, all others take its word; then all run it."""
    from hpcdl import runner, suite
    from hpcdl.clerk import claimed

    first, library = mpi.comm.rank == 0, mpi.comm.library
    text, complaint, folder = "", "", Path()
    if first:
        try:
            chosen = _suite(options)
            text = chosen.text
            folder = _writable(_folder(options, chosen), chosen.name, resume=options.resume)
            held.enter_context(claimed(folder))
        except suite.UsageError as error:
            complaint = str(error)
    text, complaint = library.bcast((text, complaint))
    if not complaint:
        try:
            chosen = suite.parse(text, str(options.suite), options.overrides)
        except suite.UsageError as error:
            complaint = f"rank {mpi.comm.rank}: {error}"  # what it wants of the machine is there on rank 0 only
        complaint = next(filter(None, library.allgather(complaint)), "")
    if not complaint:
        chosen = chosen.matching(options.case) if options.case else chosen
        try:
            return runner.run(chosen, folder, mpi, resume=options.resume, say=lambda line: print(line, flush=True))
        except suite.UsageError as error:
            complaint = str(error)
    if first:
        print(f"hpcdl: {complaint}", file=sys.stderr)
    return USAGE


def _folder(options: argparse.Namespace, chosen: Suite) -> Path:
    if options.folder is not None:
        return Path(options.folder)
    return Path("runs") / f"{chosen.name}-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"


def _writable(folder: Path, suite: str, *, resume: bool) -> Path:
    """Make the run folder.

    Raises UsageError if it cannot be written to, or holds a run that is not resumed, or one of another suite.
    """
    from hpcdl.suite import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"-o {folder}: cannot be written to: {error.strerror}") from None
    for place in (folder / "parts", folder / "log.txt", folder / "run.h5", folder / "report.md"):
        if place.exists() and place.is_dir() != (place.name == "parts"):
            raise UsageError(f"-o {folder}: {place.name} is in the way")
    if (folder / "parts").exists():
        if not resume:
            raise UsageError(f"-o {folder}: holds a run already; add --resume or choose another folder")
        if (other := _suite_of(folder)) not in {None, suite}:
            raise UsageError(f"-o {folder}: holds a run of the suite {other!r}, and this is {suite!r}")
    return folder


def _suite_of(folder: Path) -> str | None:
    """The name of the suite whose finished cases are there."""
    from hpcdl.trace.record import TraceError
    from hpcdl.trace.schema import read

    for part in sorted((folder / "parts").glob("*.h5")):
        with suppress(TraceError):
            return str(read(part).described[0].get("suite"))
    return None
