"""``hpcdl sbatch``: write a batch script for Slurm, and submit it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.output import write_output
from hpcdl.commands.parts.parser import Command, case_options, path, suite_argument, whole_number
from hpcdl.exit_codes import FAILED, OK

if TYPE_CHECKING:
    from hpcdl.launch.batch_script import BatchJob, SiteProfile
    from hpcdl.suite import Suite


def arguments(parser: argparse.ArgumentParser) -> None:
    suite_argument(parser, "suite", "SUITE", "a suite file, or the name of a shipped suite")
    parser.add_argument(
        "--nodes",
        type=_counts,
        required=True,
        metavar="N[,N...]",
        help="one number: one job for all cases; several: one job each, with all cases on all of its ranks",
    )
    parser.add_argument("--ranks-per-node", type=whole_number, default=1, metavar="N", help="default: 1")
    parser.add_argument("--cpus-per-rank", type=whole_number, metavar="N", help="cores and threads of a rank")
    parser.add_argument(
        "--gpus-per-node", type=whole_number, metavar="N", help="the cases are checked on the nodes, not here"
    )
    parser.add_argument("--time", metavar="LIMIT", help="default: the partition's")
    parser.add_argument(
        "--launches", type=whole_number, default=1, metavar="N", help="a job array of N independent launches"
    )
    case_options(parser, "as of hpcdl run", "as of hpcdl run")
    parser.add_argument("--site", type=path, metavar="FILE", help="a site profile in the place of the usual ones")
    parser.add_argument("-o", dest="script", type=path, metavar="FILE", help="default: SUITE.sbatch")
    parser.add_argument("--dry-run", action="store_true", help="show the script, write and submit nothing")
    parser.add_argument(
        "--submit",
        action="store_true",
        help="submit the jobs, and one that reports them together when all have ended",
    )


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(whole_number(word) for word in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{min(counts)}: must be at least 1")
    if len(set(counts)) < len(counts):
        raise argparse.ArgumentTypeError(f"{text}: a number is there twice")
    return counts


def execute(options: argparse.Namespace) -> int:
    from hpcdl import suite
    from hpcdl.launch.batch_script import BatchJob, batch_script, site_profile

    on_gpus = options.gpus_per_node is not None
    ranks = options.nodes[0] * options.ranks_per_node
    chosen = suite.load(
        options.suite, options.overrides, options.case, ranks=ranks, full=options.full, check=not on_gpus
    )
    _check(options, chosen)
    try:
        site = site_profile(options.site)
    except ValueError as error:
        raise suite.UsageError(str(error)) from None
    job = BatchJob(
        str(options.suite),
        chosen.name,
        shlex.join(["hpcdl", *_without_actions(options.given)]),
        options.nodes,
        options.ranks_per_node,
        options.cpus_per_rank,
        options.gpus_per_node,
        options.time,
        options.launches,
        ("--full",) * options.full
        + tuple(word for glob in options.case for word in ("--case", glob))
        + tuple(word for override in options.overrides for word in ("--set", override)),
    )
    try:
        text = batch_script(job, site)
    except ValueError as error:
        raise suite.UsageError(str(error)) from None
    if options.dry_run:
        print(text, end="")
        return OK
    script = options.script or Path(f"{chosen.name}.sbatch")
    _check_unedited(script, text)
    write_output("-o", script, text)
    print(f"written: {script}")
    return _submit(job, site, script) if options.submit else OK


def _check(options: argparse.Namespace, chosen: Suite) -> None:
    """Raise UsageError for numbers that are none, and for fewer ranks than the suite's cases need."""
    from hpcdl.suite import UsageError

    for name in ("ranks_per_node", "cpus_per_rank", "gpus_per_node", "launches"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    needed = max(case.processes for case in chosen.cases)
    there = options.nodes[0] * options.ranks_per_node
    if len(options.nodes) == 1 and there < needed:
        raise UsageError(
            f"--nodes {options.nodes[0]}: a job of {there} ranks, and the suite {chosen.name!r} has cases of "
            f"{needed}; see --ranks-per-node, --case and --set"
        )
    idle = options.nodes[0] - -(-needed // options.ranks_per_node)
    if len(options.nodes) == 1 and idle:
        print(
            f"hpcdl: warning: {idle} of {options.nodes[0]} nodes stay idle: the largest case has {needed} ranks; "
            "--set 'case.ranks=\"all\"' uses them",
            file=sys.stderr,
        )


def _check_unedited(script: Path, text: str) -> None:
    from hpcdl.suite import UsageError
    from hpcdl.trace.files import read_text

    try:
        if script.is_file() and read_text(script) != text:
            raise UsageError(
                f"-o {script}: has another script, perhaps edited: remove it, choose another name, or submit it "
                f"as it is: sbatch {shlex.quote(str(script))}"
            )
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"-o {script}: {error}") from None


def _without_actions(given: list[str]) -> list[str]:
    kept = [word for word in given if word not in {"--dry-run", "--submit"}]
    if "-o" in kept:
        at = kept.index("-o")
        del kept[at : at + 2]
    return kept


_REPORT: Final = """\
for run in {folders}; do
    if ls "$run"/parts/*.h5 >/dev/null 2>&1; then
        set -- "$@" "$run"
    else
        echo "$run: no case has finished"
    fi
done
hpcdl report "$@" --together -o {page}.md
hpcdl report "$@" --together -o {page}.html
"""
"""Shell: one report of the runs that have a case, although a job may have failed."""


def _submit(job: BatchJob, site: SiteProfile, script: Path) -> int:
    import shutil
    import subprocess

    from hpcdl.launch.batch_script import environment, site_options

    if shutil.which("sbatch") is None:
        from hpcdl.suite import UsageError

        raise UsageError("--submit: sbatch is not found; this is no node of a Slurm cluster")

    def sbatch(*words: str) -> str:
        command = ["sbatch", "--parsable", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().partition(";")[0]

    numbers, folders = [], []
    try:
        for nodes in job.nodes:
            number = sbatch(f"--nodes={nodes}", str(script))
            tasks = [f"{number}_{task}" for task in range(1, job.launches + 1)] if job.launches > 1 else [number]
            numbers.append(number)
            folders += [f"runs/{job.name}-{nodes}-nodes-{task}" for task in tasks]
            print(f"job {number}: {nodes} nodes")
        page = f"runs/{job.name}-{numbers[0]}"
        commands = [*environment(site), _REPORT.format(folders=shlex.join(folders), page=shlex.quote(page))]
        asked = [f"--{option}" for option in site_options(site)]
        name, after = f"--job-name=hpcdl-{job.name}-report", f"--dependency=afterany:{':'.join(numbers)}"
        number = sbatch(*asked, name, after, "--ntasks=1", "--wrap=" + "\n".join(commands))
    except subprocess.CalledProcessError as error:
        print(f"hpcdl: {' '.join(error.stderr.split())}")
        return FAILED
    print(f"job {number}: report, in {page}.md and .html, when the others have ended")
    return OK


COMMAND: Final = Command(
    15,
    "write a batch script for Slurm",
    "Write a batch script for Slurm, as plain as one written by hand. Partition, account, modules, launcher and "
    "environment come from a site profile, ~/.config/hpcdl/site.toml or /etc/hpcdl/site.toml.",
    arguments,
    execute,
    "hpcdl sbatch interconnect --nodes 16 --time 30",
)
