"""The command line; thin. Heavy imports are late: thousands of ranks start through here."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import tempfile
import traceback
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import hpcdl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.mpi import Mpi
    from hpcdl.suite import Suite

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 75
MISMATCH: Final = 78


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    from hpcdl.suite import UsageError

    try:
        code = int(options.command(options, given))
        sys.stdout.flush()
    except UsageError as error:
        print(f"hpcdl: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        from hpcdl.launch.guard import is_first
        from hpcdl.launch.mpirun import STATUS

        if is_first(os.environ) and STATUS not in os.environ:  # else whoever launched us says so
            print("hpcdl: interrupted; finished cases are kept, go on with --resume", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # what is left to print must not complain a second time at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader has left: | head
            print(f"hpcdl: {error}", file=sys.stderr)
        return FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hpcdl",
        description="Benchmark what distributed deep learning does to a machine.",
        epilog="exit codes: 0 fine; 1 a check failed; 2 wrong usage or suite; 75 interrupted, can resume; "
        "78 the launcher does not fit the MPI library",
    )
    parser.add_argument("--version", action="version", version=f"hpcdl {hpcdl.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run a suite",
        description="Run a suite. Outside a launcher it starts mpirun itself; inside mpirun or srun it uses the "
        "ranks it is given, smaller cases on the first ones of them.",
    )
    run.add_argument("suite", type=Path, metavar="SUITE.toml")
    run.add_argument(
        "-n", dest="ranks", type=int, metavar="RANKS", help="ranks to start (default: what the suite needs)"
    )
    run.add_argument("-o", dest="folder", type=Path, metavar="DIR", help="run folder (default: runs/SUITE-TIME)")
    run.add_argument("--case", metavar="GLOB", help="only cases whose name matches")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="case.KEY=VALUE",
        help="change a key of every case that has it; values as in TOML",
    )
    run.add_argument("--resume", action="store_true", help="keep the finished cases of DIR and run the others")
    run.add_argument("--dry-run", action="store_true", help="check everything, list the cases, run nothing")
    run.add_argument(
        "--launches", type=int, default=1, metavar="N", help="start the ranks N times anew, into DIR/launch-1, ..."
    )
    run.set_defaults(command=_run)

    report = commands.add_parser(
        "report", help="tables from runs", description="Print a report of one or more runs."
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    report.add_argument("-o", dest="output", type=Path, metavar="PAGE", help="write to PAGE: .md or .csv")
    report.add_argument("--json", action="store_true", help="one JSON document with a record per case")
    report.add_argument("--together", action="store_true", help="the runs are launches of one suite: pool them")
    report.set_defaults(command=_report)

    predict = commands.add_parser(
        "predict",
        help="times on another network, or on more ranks",
        description="Simulate the collectives and exchanges of a suite or a run on a network: a preset (hpcdl "
        "list networks), a file that --save wrote, or a run, to whose measured times a network is fitted.",
    )
    predict.add_argument("what", type=Path, metavar="SUITE.toml|RUN")
    predict.add_argument("--network", required=True, metavar="NAME|RUN|FILE.toml")
    predict.add_argument("--ranks", default="", metavar="N,...", help="ascending (default: each case's own)")
    predict.add_argument("--ranks-per-host", type=int, metavar="N", help="(default: one, or the measured run's)")
    predict.add_argument("--case", metavar="GLOB", help="only cases whose name matches")
    predict.add_argument("--save", type=Path, metavar="FILE.toml", help="write the network to a file")
    predict.add_argument("--json", action="store_true", help="one JSON document with a record per case")
    predict.set_defaults(command=_predict)

    from hpcdl.launch.catalogue import SUBJECTS

    names = commands.add_parser("list", help="what a suite can name", description="List what a suite can name.")
    names.add_argument("what", nargs="?", choices=SUBJECTS, metavar="WHAT", help=", ".join(SUBJECTS))
    names.add_argument("--json", action="store_true", help="one JSON document")
    names.add_argument(
        "--batch",
        type=_batches,
        metavar="N,...",
        help="weigh models for these many images a step: parameters, |W|, |D|, arithmetic, activations",
    )
    names.set_defaults(command=_list)

    check = commands.add_parser(
        "check",
        help="preflight",
        description="Look at this machine before a run: MPI, launcher, cores, clocks, disk, GPU.",
    )
    check.set_defaults(command=_check)

    testbed = commands.add_parser(
        "testbed",
        help="emulate a cluster on this machine",
        description="Run COMMAND on an emulated cluster: network namespaces on one Linux machine, behind links of "
        "the rate that you say. Needs root. hpcdl run and mpirun in it start their ranks on the hosts in turn; "
        "ssh HOST enters one. The exit code is the command's.",
    )
    testbed.add_argument("--hosts", type=int, required=True, metavar="N", help="host1, host2, ...; at most 64")
    testbed.add_argument(
        "--rate", required=True, help="of each link, in both directions, as tc writes it: 200mbit, 1gbit"
    )
    testbed.add_argument(
        "--slow", action="append", default=[], metavar="HOST:RATE", help="a host with another rate; repeatable"
    )
    testbed.add_argument("words", nargs="*", metavar="-- COMMAND", help="what to run, with its arguments")
    testbed.set_defaults(command=_testbed)
    return parser


def _run(options: argparse.Namespace, given: list[str]) -> int:
    from hpcdl.launch.guard import is_first, launched

    if options.dry_run:
        return _dry_run(options) if is_first(os.environ) else OK
    if options.launches != 1:
        return _run_several(options, given, inside=launched(os.environ))
    return _run_in_job(options) if launched(os.environ) else _run_from_shell(options, given)


def _run_several(options: argparse.Namespace, given: list[str], *, inside: bool) -> int:
    """Launch the suite several times, each into a folder of its own, and report the launches together."""
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
        code = _run_from_shell(options, [*given, "-o", str(run), "--launches", "1"])
        if code not in {OK, FAILED}:
            return code
        worst = max(worst, code)
    options.runs, options.output, options.json, options.together = runs, folder / "report.md", False, True
    _report(options, given)
    print(f"launches together: {options.output}")
    return worst


def _suite(options: argparse.Namespace) -> Suite:
    from hpcdl import suite

    found = suite.load(options.suite, options.overrides)
    return found.matching(options.case) if options.case else found


def _dry_run(options: argparse.Namespace) -> int:
    chosen = _suite(options)
    for case in chosen.cases:
        print(f"{case.name}  ({case.processes} ranks, {case.digest})")
    print(f"{len(chosen.cases)} cases, {max(case.processes for case in chosen.cases)} ranks")
    return OK


def _run_from_shell(options: argparse.Namespace, given: list[str]) -> int:
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
    folder = _writable(_folder(options, chosen), resume=options.resume)
    if options.folder is None:
        given = [*given, "-o", str(folder)]
    with tempfile.TemporaryDirectory() as place:
        try:
            status, tolerant = Path(place) / "status", any(case.mortal for case in chosen.cases)
            code = self_launch(ranks, given, status, tolerant=tolerant)
            while code == AGAIN:
                status.unlink()
                code = self_launch(ranks, [*given, "--resume"], status, tolerant=tolerant)
        except NoLauncher as error:
            raise UsageError(str(error)) from None
    if code is None:
        print("hpcdl: the ranks ended early; finished cases are kept, go on with --resume", file=sys.stderr)
        return FAILED
    return code


def _run_in_job(options: argparse.Namespace) -> int:
    """One of the job's ranks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # the guard says it better
        from hpcdl.fabric.mpi import Mpi, library_version
        from hpcdl.fabric.mpi_failure import depart
    from hpcdl.launch.guard import is_first, mismatch
    from hpcdl.launch.mpirun import leave_status

    mpi = Mpi()
    complaint = mismatch(mpi.comm.size, os.environ, library_version()["library"])
    if complaint:
        if is_first(os.environ):
            print(f"hpcdl: {complaint}", file=sys.stderr)
        return leave_status(MISMATCH, mpi.comm.rank)
    try:
        with ExitStack() as held:
            code = _run_on_all(options, mpi, held)
    except Exception as error:  # noqa: BLE001 - all of it ends the job
        if isinstance(error, (MemoryError, OSError)):  # the machine's fault, not the program's
            print(f"hpcdl: rank {mpi.comm.rank}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        mpi.abort(FAILED)  # the other ranks wait for this one, and would for ever
        return FAILED
    return depart(mpi.comm, leave_status(code, mpi.comm.rank))


def _run_on_all(options: argparse.Namespace, mpi: Mpi, held: ExitStack) -> int:
    """Rank 0 reads and checks the suite, all others take its word; then all run it."""
    from hpcdl import runner, suite
    from hpcdl.clerk import claimed

    first, library = mpi.comm.rank == 0, mpi.comm.library
    text, complaint, folder = "", "", Path()
    if first:
        try:
            chosen = _suite(options)
            text = chosen.text
            folder = _writable(_folder(options, chosen), resume=options.resume)
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


def _writable(folder: Path, *, resume: bool) -> Path:
    """Make the run folder. Raises UsageError if it cannot be written to, or holds a run that is not resumed."""
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
    if not resume and (folder / "parts").exists():
        raise UsageError(f"-o {folder}: holds a run already; add --resume or choose another folder")
    return folder


def _report(options: argparse.Namespace, _given: list[str]) -> int:
    from hpcdl.analysis.scaling import AmbiguousCaseError
    from hpcdl.analysis.together import together
    from hpcdl.report.render import render
    from hpcdl.suite import UsageError
    from hpcdl.trace.record import TraceError

    output: Path | None = options.output
    form = "json" if options.json else output.suffix.removeprefix(".") if output else "md"
    try:
        runs = [hpcdl.read(path) for path in options.runs]
        text = render([together(runs)] if options.together else runs, form)
    except (TraceError, AmbiguousCaseError, ValueError) as error:
        raise UsageError(str(error)) from None
    if output is None:
        print(text)
        return OK
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"-o {output}: {error.strerror}") from None
    return OK


def _predict(options: argparse.Namespace, _given: list[str]) -> int:
    from hpcdl import prediction
    from hpcdl.analysis import network_file
    from hpcdl.report import predictions
    from hpcdl.report.summary import plain
    from hpcdl.suite import UsageError

    found = prediction.predict(
        options.what,
        options.network,
        prediction.ascending(options.ranks),
        glob=options.case,
        ranks_per_host=options.ranks_per_host,
    )
    if options.save:
        try:
            origin = found.fitted.origin if found.fitted else {}
            options.save.write_text(network_file.written(found.network, origin), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--save {options.save}: {error.strerror}") from None
    page = predictions.document(found, f"hpcdl: {options.what} on {found.network.name}")
    print(predictions.render(found) if options.json else plain([page]), end="")
    return OK


def _batches(text: str) -> list[int]:
    """Read ``256,1024``."""
    try:
        batches = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas between them") from None
    if min(batches) < 1:
        raise argparse.ArgumentTypeError(f"{min(batches)} is less than 1")
    return batches


def _list(options: argparse.Namespace, _given: list[str]) -> int:
    from hpcdl.launch.catalogue import SUBJECTS, USUAL_BATCH, catalogue, described
    from hpcdl.suite import UsageError

    if options.batch and options.what != "models":
        raise UsageError("--batch: goes with models only")
    subjects = [options.what] if options.what else list(SUBJECTS)
    batches = options.batch or [USUAL_BATCH]
    found: dict[str, list[dict[str, Any]]] = {what: catalogue(what, batches) for what in subjects}
    if options.json:
        print(json.dumps({"schema": 1, **found}, indent=1))
        return OK
    for what, entries in found.items():
        print(f"{what}:")
        width = max((len(entry["name"]) for entry in entries), default=0)
        for entry in entries:
            print(f"  {entry['name']:{width}}  {described(entry, weighed=bool(options.batch))}")
    return OK


def _check(_options: argparse.Namespace, _given: list[str]) -> int:
    from hpcdl.launch.preflight import preflight

    failed = False
    for finding in preflight():
        print(f"{finding.verdict:7}  {finding.what}: {finding.detail}")
        failed |= finding.verdict == "FAILED"
    return FAILED if failed else OK


def _testbed(options: argparse.Namespace, given: list[str]) -> int:
    from hpcdl.launch.testbed import NoTestbed, hold, plan
    from hpcdl.suite import UsageError

    # the parser's own reading of -- differs between versions of Python, and a command may have a -- too
    command = given[given.index("--") + 1 :] if "--" in given else options.words
    try:
        return hold(plan(options.hosts, options.rate, options.slow), command)
    except NoTestbed as error:
        raise UsageError(str(error)) from None
