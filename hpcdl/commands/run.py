"""``hpcdl run``: run a suite, from a shell or as one rank of an MPI job."""

import argparse
import os
from functools import partial
from typing import Final

from hpcdl.commands.parts.job import (
    check_memory,
    folder_of,
    from_shell,
    in_job,
    load_suite,
    ranks_to_start,
    trials_alone,
)
from hpcdl.commands.parts.options import Arguments, Command, case_options, path, suite_argument, whole_number
from hpcdl.exit_codes import FAILED, OK, UsageError

MAX_LAUNCHES: Final = 1000


def arguments(parser: Arguments) -> None:
    suite_argument(parser, "suite SUITE", "a suite file, or a name from `hpcdl list suites`")
    parser.option("-n --ranks RANKS", "ranks to start (default: those of the largest case)", type=whole_number)
    parser.option("-o DIR", "run folder (default: runs/SUITE-TIME)", dest="folder", type=path)
    chosen = "select cases by name; data and sizes of others are not checked"
    case_options(parser, chosen, "replace a key of every case that has it; values are TOML")
    effect = "keep the finished cases of DIR and run the others (default DIR: newest unfinished run of the suite)"
    parser.option("--resume", effect)
    parser.option("--dry-run", "check everything, list the cases, run nothing")
    effect = "start the ranks N times, into DIR/launch-1, ..., and pool the results"
    parser.option("--launches N", effect, type=whole_number, default=1)
    effect = "run only the trials of grids (tune with rates or batches), into -o DIR; 3: a best one is at an edge"
    parser.option("--trials", effect)
    effect = (
        "time limit of each case, instead of timeout_seconds of the suite (default: a case fails when no "
        "operation has ended for half an hour)"
    )
    parser.option("--case-timeout SECONDS", effect, type=float)
    effect = "with --resume: allow finished cases of another machine or MPI library; the report names them"
    parser.option("--mix-environments", effect)
    parser.set_defaults(text=None, finished=None, show=partial(print, flush=True))


def execute(options: argparse.Namespace) -> int:
    from hpcdl.launch.process import check_leftover, is_first, launched
    from hpcdl.launch.testbed import emulated

    check_leftover(os.environ)
    emulated()  # raises LaunchError before any rank starts
    if options.case_timeout is not None and not 1 <= options.case_timeout < float("inf"):
        raise UsageError(f"--case-timeout {options.case_timeout:g}: must be at least 1, in seconds")
    if not 1 <= options.launches <= MAX_LAUNCHES:
        raise UsageError(f"--launches {options.launches}: must be from 1 to {MAX_LAUNCHES}")
    if options.mix_environments and not options.resume:
        raise UsageError("--mix-environments: only with --resume")
    if options.dry_run:
        return _dry_run(options) if is_first(os.environ) else OK
    if options.trials:
        if launched(os.environ):
            raise UsageError("--trials: start it outside of mpirun and srun")
        return trials_alone(options)
    if options.launches != 1:
        return _several(options, inside=launched(os.environ))
    return in_job(options) if launched(os.environ) else from_shell(options, options.given)


def _several(options: argparse.Namespace, *, inside: bool) -> int:
    from hpcdl.analysis.run.pooling import ended_early, runs_in
    from hpcdl.commands.parts.options import name_broken, rendered
    from hpcdl.launch.mpirun import LAUNCH
    from hpcdl.report.formats.writers import coloured
    from hpcdl.report.render import end, next_steps

    if inside:
        raise UsageError(
            f"--launches {options.launches}: a job is one launch; submit several, then use hpcdl report --together"
        )
    folder = folder_of(options, load_suite(options))
    runs = [folder / f"launch-{number}" for number in range(1, options.launches + 1)]
    if (folder / "parts").exists() or {*runs_in(folder)} - {folder, *runs}:
        raise UsageError(f"-o {folder}: has another run, or more launches than {len(runs)}; choose another folder")
    worst = OK
    for number, run in enumerate(runs, 1):
        os.environ[LAUNCH] = f"{number} of {len(runs)}"
        options.folder, options.launches = run, 1
        code = from_shell(options, [*options.given, "-o", str(run), "--launches", "1"])
        if code not in {OK, FAILED}:
            return code
        worst = max(worst, code)
    if len(lost := ended_early(folder)) == len(runs):
        return worst  # its reason is printed
    try:
        made = rendered([folder], lambda pooled: end(folder, *pooled, predict=True), launches=True)
    except OSError as error:
        raise UsageError(f"{folder}: the report cannot be written: {error.strerror}") from None
    summary, page, broken = made
    print(coloured(summary))
    print(next_steps(page, folder, repeat=len(runs) - len(lost) == 1))
    name_broken(broken)
    return FAILED if broken and worst == OK else worst


def _dry_run(options: argparse.Namespace) -> int:
    from hpcdl.launch.process import launched
    from hpcdl.report.formats.cells import plural

    chosen = load_suite(options)
    ranks = ranks_to_start(options, chosen)
    for case in chosen.cases:
        print(f"{case.name}  ({plural(case.processes, 'rank')}, {case.digest})")
    most = max(case.processes for case in chosen.cases)
    more = f"; --full adds {plural(chosen.only_full, 'case')}" if chosen.only_full else ""
    print(f"{plural(len(chosen.cases), 'case')}, {plural(most, 'rank')}{more}", flush=True)
    if not launched(os.environ):
        check_memory(chosen, ranks)
    return OK


COMMAND: Final = Command(
    10,
    "run a suite",
    "Run a suite. Outside a launcher hpcdl starts mpirun; inside mpirun or srun it uses the given ranks, and "
    "runs smaller cases on the first ranks.",
    "hpcdl run quickstart --case '*ring*'",
)
