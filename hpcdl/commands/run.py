"""``hpcdl run``: run a suite, from a shell or as one rank of an MPI job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.folder import folder_of, load_suite, writable
from hpcdl.commands.parts.job import in_job
from hpcdl.commands.parts.parser import Command, case_patterns, path, whole_number
from hpcdl.exit_codes import FAILED, OK

if TYPE_CHECKING:
    import argparse

    from hpcdl.suite import Suite


MAX_LAUNCHES: Final = 1000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments and options."""
    parser.add_argument(
        "suite",
        type=path,
        metavar="SUITE",
        help="a suite file, or a name from `hpcdl list suites`",
    )
    parser.add_argument(
        "-n",
        "--ranks",
        type=whole_number,
        metavar="RANKS",
        help="ranks to start (default: those of the largest case)",
    )
    parser.add_argument(
        "-o", dest="folder", type=path, metavar="DIR", help="run folder (default: runs/SUITE-TIME)"
    )
    case_patterns(parser, "select cases by name; data and sizes of others are not checked")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="case.KEY=VALUE",
        help="replace a key of every case that has it; values are TOML",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the finished cases of DIR and run the others (default DIR: newest unfinished run of the suite)",
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, list the cases, run nothing")
    parser.add_argument(
        "--launches",
        type=whole_number,
        default=1,
        metavar="N",
        help="start the ranks N times, into DIR/launch-1, ..., and pool the results",
    )
    parser.add_argument(
        "--case-timeout",
        type=float,
        metavar="SECONDS",
        help="time limit of each case, instead of timeout_seconds of the suite (default: a case fails when no "
        "operation has ended for half an hour)",
    )
    parser.add_argument(
        "--mix-environments",
        action="store_true",
        help="with --resume: allow finished cases of another machine or MPI library; the report names them",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl.launch.library import is_first, launched
    from hpcdl.launch.testbed_settings import emulated
    from hpcdl.suite import UsageError

    emulated()  # raises TestbedError before any rank starts
    if options.case_timeout is not None and not 1 <= options.case_timeout < float("inf"):
        raise UsageError(f"--case-timeout {options.case_timeout:g}: must be at least 1, in seconds")
    if options.dry_run:
        return _dry_run(options) if is_first(os.environ) else OK
    if options.launches != 1:
        return _several(options, inside=launched(os.environ))
    return in_job(options) if launched(os.environ) else _from_shell(options, options.given)


def _several(options: argparse.Namespace, *, inside: bool) -> int:
    """Launch the suite several times, each into its own folder; report the pooled launches."""
    from hpcdl.commands.parts.output import rendered
    from hpcdl.launch.mpirun import LAUNCH
    from hpcdl.report.formats.summary import coloured
    from hpcdl.report.run.render import formats, next_steps, save
    from hpcdl.suite import UsageError

    if not 1 <= options.launches <= MAX_LAUNCHES:
        raise UsageError(f"--launches {options.launches}: must be from 1 to {MAX_LAUNCHES}")
    if inside:
        raise UsageError(
            f"--launches {options.launches}: a job is one launch; submit several, then use hpcdl report --together"
        )
    folder = folder_of(options, load_suite(options))
    runs = [folder / f"launch-{number}" for number in range(1, options.launches + 1)]
    worst = OK
    for number, run in enumerate(runs, 1):
        os.environ[LAUNCH] = f"{number} of {len(runs)}"
        options.folder, options.launches = run, 1
        code = _from_shell(options, [*options.given, "-o", str(run), "--launches", "1"])
        if code not in {OK, FAILED}:
            return code
        worst = max(worst, code)
    summary, *texts = rendered(runs, ["summary", *formats()], launches=True)
    try:
        page = save(folder, texts)
    except OSError as error:
        raise UsageError(f"{folder}: the report cannot be written: {error.strerror}") from None
    print(coloured(summary))
    print(next_steps(page, folder, launches=len(runs)))
    return worst


def _dry_run(options: argparse.Namespace) -> int:
    """List the cases. Raises UsageError, after the list, if they would exceed this node's memory."""
    from hpcdl.launch.library import launched
    from hpcdl.report.formats.cells import plural

    chosen = load_suite(options)
    ranks = _ranks(options, chosen)
    for case in chosen.cases:
        print(f"{case.name}  ({plural(case.processes, 'rank')}, {case.digest})")
    most = max(case.processes for case in chosen.cases)
    print(f"{plural(len(chosen.cases), 'case')}, {plural(most, 'rank')}", flush=True)
    if not launched(os.environ):
        _check_memory(chosen, ranks)
    return OK


def _ranks(options: argparse.Namespace, chosen: Suite) -> int:
    """Return the number of ranks to start. Raises UsageError if -n is too small for the cases, or too large."""
    from hpcdl.cases.spec.keys import MAX_RANKS
    from hpcdl.suite import UsageError

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


def _check_memory(chosen: Suite, ranks: int) -> None:
    """Raise UsageError if all ranks start on this node and exceed its memory."""
    from hpcdl.launch.library import in_batch_job
    from hpcdl.run.memory import lack_of_memory
    from hpcdl.suite import UsageError

    if not in_batch_job(os.environ) and (line := lack_of_memory(chosen.cases, ["here"] * ranks)) is not None:
        raise UsageError(line)


def _from_shell(options: argparse.Namespace, given: list[str]) -> int:
    """Check everything in this process, then start mpirun."""
    from hpcdl.launch.mpirun import NoLauncher
    from hpcdl.run.relaunch import run_cases
    from hpcdl.suite import UsageError

    chosen = load_suite(options)
    ranks = _ranks(options, chosen)
    _check_memory(chosen, ranks)
    folder = writable(folder_of(options, chosen), chosen.name, resume=options.resume)
    if options.folder is None:
        given = [*given, "-o", str(folder)]
    fault_tolerant = any(case.failure for case in chosen.cases)
    try:
        return run_cases(
            ranks,
            given,
            folder / "parts",
            cases=[case.digest for case in chosen.cases],
            fault_tolerant=fault_tolerant,
            typed=options.given,
        )
    except NoLauncher as error:
        raise UsageError(str(error)) from None


COMMAND: Final = Command(
    10,
    "run a suite",
    "Run a suite. Outside a launcher hpcdl starts mpirun; inside mpirun or srun it uses the given ranks, and "
    "runs smaller cases on the first ranks.",
    arguments,
    execute,
    "hpcdl run quickstart --case '*ring*'",
)
