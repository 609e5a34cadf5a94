"""``hpcdl sbatch``: write a batch script for Slurm, and submit it."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import (
    Arguments,
    Command,
    case_options,
    path,
    suite_argument,
    whole_number,
    write_output,
)
from hpcdl.exit_codes import FAILED, OK, UsageError, message, refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.launch.batch_script import BatchJob
    from hpcdl.suite import Suite


def arguments(parser: Arguments) -> None:
    suite_argument(parser, "suite SUITE", "a suite file, or the name of a shipped suite")
    effect = "one number: one job for all cases; several: a job for each, which runs all cases on all of its ranks"
    parser.option("--nodes N[,N...]", effect, type=_counts, required=True)
    parser.option("--ranks-per-node N", "(default: 1)", type=whole_number, default=1)
    parser.option("--cpus-per-rank N", "cores and threads of a rank", type=whole_number)
    effect = "GPUs per node; then the nodes check the cases, not this machine"
    parser.option("--gpus-per-node N", effect, type=whole_number)
    parser.option("--time LIMIT", "such as 30 (minutes) or 04:00:00 (default: the partition's)", type=_time_limit)
    effect = "a job array of N independent launches, one at a time"
    parser.option("--launches N", effect, type=whole_number, default=1)
    effect = "a further line #SBATCH --NAME=VALUE, such as qos=high or constraint=haswell; repeatable"
    parser.option("--directive NAME=VALUE", effect, action="append", default=[], dest="directives")
    parser.option("--no-exclusive", "other jobs may use the nodes, which disturbs the measurement")
    parser.option("--container IMAGE", "run hpcdl in this image of Apptainer")
    case_options(parser, "see hpcdl run", "see hpcdl run")
    parser.option("--site FILE", "a site profile instead of the usual one", type=path)
    parser.option("-o FILE", "(default: SUITE.sbatch)", dest="script", type=path)
    parser.option("--dry-run", "show the script, write and submit nothing")
    parser.option("--submit", "submit the jobs, and one that reports them together when all have ended")


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(whole_number(word) for word in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{min(counts)}: must be at least 1")
    if len(set(counts)) < len(counts):
        raise argparse.ArgumentTypeError(f"{text}: a number is there twice")
    return counts


def _time_limit(text: str) -> str:
    """Return a time limit of Slurm. Raises argparse.ArgumentTypeError with the nearest one for other text."""
    if re.fullmatch(r"([0-9]{1,7}-)?[0-9]{1,7}(:[0-9]{1,7}){0,2}", text):
        return text
    from hpcdl.registry import shortened

    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    parts = re.findall(r"([0-9]{1,7}(?:\.[0-9]+)?) ?([dhms])", text)
    minutes, seconds = divmod(round(sum(float(number) * units[unit] for number, unit in parts)), 60)
    near = f"did you mean {minutes}:{seconds:02}?".replace(":00", "") if parts else "0: no limit"
    raise argparse.ArgumentTypeError(
        f"{shortened(text)} is none of minutes, minutes:seconds, hours:minutes:seconds, days-hours, "
        f"days-hours:minutes and days-hours:minutes:seconds; {near}"
    )


def execute(options: argparse.Namespace) -> int:
    from hpcdl import suite
    from hpcdl.data.parts.dataset import MissingDatasetError
    from hpcdl.launch.batch_script import BatchJob, asks_for_gpus, batch_script, report_script, site_profile
    from hpcdl.report.contents import check_answer
    from hpcdl.trace.files import read_text

    site = site_profile(options.site)
    on_gpus = options.gpus_per_node is not None or asks_for_gpus((*site.directives, *options.directives))
    ranks = options.nodes[0] * options.ranks_per_node
    settings = options.suite, options.overrides, options.case
    chosen = suite.load(*settings, ranks=ranks, full=options.full, check=not on_gpus, elsewhere=True)
    check_answer(chosen, options.suite)
    try:
        for case in () if on_gpus else chosen.cases:
            case.setting("data")
    except MissingDatasetError as error:
        print(f"hpcdl: warning: the job needs a dataset that this machine lacks: {error}", file=sys.stderr)
    _check(options, chosen)
    site = replace(site, container=options.container or site.container)
    more = ["--full"] * options.full
    more += [word for glob in options.case for word in ("--case", glob)]
    more += [word for override in options.overrides for word in ("--set", override)]
    same = ("nodes", "ranks_per_node", "cpus_per_rank", "gpus_per_node", "time", "launches")
    job = BatchJob(
        str(options.suite),
        chosen.name,
        shlex.join(["hpcdl", *_without_actions(options.given)]),
        exclusive=not options.no_exclusive,
        directives=tuple(options.directives),
        options=tuple(more),
        **{name: getattr(options, name) for name in same},
    )
    script = options.script or Path(f"{chosen.name}.sbatch")
    report = script.with_name(f"{script.stem}-report{script.suffix}")
    texts = {script: batch_script(job, site), **({report: report_script(job, site)} if options.submit else {})}
    if options.dry_run:
        print(texts[script], end="")
        return OK
    if options.submit and shutil.which("sbatch") is None:
        raise UsageError("--submit: sbatch is not found; this is no node of a Slurm cluster")
    for file, text in texts.items():
        with refused("-o "):
            if file.is_file() and read_text(file) != text:
                raise UsageError(
                    f"-o {file}: another script has this name, perhaps edited; remove it, choose another name, or "
                    f"submit it: sbatch {shlex.quote(str(file))}"
                )
    created = [file for file in texts if not file.exists()]
    for file, text in texts.items():
        write_output("-o", file, text)
        print(f"written: {file}")
    return _submit(job, script, report, created) if options.submit else OK


def _check(options: argparse.Namespace, chosen: Suite) -> None:
    """Raise UsageError for numbers that are none, and for fewer ranks than the suite's cases need."""
    from hpcdl.report.formats.cells import plural

    for name in ("ranks_per_node", "cpus_per_rank", "gpus_per_node", "launches"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    needed = max(case.processes for case in chosen.cases)
    there = options.nodes[0] * options.ranks_per_node
    if len(options.nodes) == 1 and there < needed:
        raise UsageError(
            f"--nodes {options.nodes[0]}: the job has {plural(there, 'rank')}, but {chosen.name!r} needs "
            f"{needed}; see --ranks-per-node, --case and --set"
        )
    idle = options.nodes[0] - -(-needed // options.ranks_per_node)
    if len(options.nodes) == 1 and idle:
        print(
            f"hpcdl: warning: {idle} of {options.nodes[0]} nodes stay idle: the largest case has {needed} ranks; "
            "--set 'case.ranks=\"all\"' uses them",
            file=sys.stderr,
        )


def _without_actions(given: list[str]) -> list[str]:
    kept = [word for word in given if word not in {"--dry-run", "--submit"}]
    if "-o" in kept:
        at = kept.index("-o")
        del kept[at : at + 2]
    return kept


def _submit(job: BatchJob, script: Path, report: Path, created: Sequence[Path]) -> int:
    """Submit the jobs and then the report; where that fails, print the submitted jobs and the remaining commands.

    If Slurm takes no job, as for a wrong directive, the ``created`` scripts are removed.
    """
    from hpcdl.report.formats.cells import plural

    jobs = {nodes: f"JOB{nodes}" for nodes in job.nodes}
    tasks = [f"_{task}" for task in range(1, job.launches + 1)] if job.launches > 1 else [""]
    todo = [*job.nodes, 0]
    """Numbers of nodes of the jobs to be submitted, then 0 for the report."""
    cluster: list[str] = []

    def words(nodes: int) -> list[str]:
        if nodes:
            return [*cluster, f"--nodes={nodes}", str(script)]
        runs = [f"runs/{job.name}-{count}-nodes-{jobs[count]}{task}" for count in job.nodes for task in tasks]
        return [*cluster, f"--dependency=afterany:{':'.join(jobs.values())}", str(report), *runs]

    try:
        while todo:
            number, cluster = _sbatch(words(todo[0]))
            nodes = todo.pop(0)
            if nodes:
                jobs[nodes] = number
                print(f"job {number}: {plural(nodes, 'node')}", flush=True)
            else:
                print(
                    f"job {number}: report, in runs/{job.name}-{number}.md and .html, when all others have ended"
                )
    except subprocess.SubprocessError as error:
        print(f"hpcdl: {error}", file=sys.stderr)
    finally:  # also after Ctrl-C
        submitted = [jobs[nodes] for nodes in job.nodes if nodes not in todo]
        if todo and submitted:
            missing = "".join(f", with the new job's number for {jobs[nodes]}" for nodes in todo if nodes)
            print(f"submitted: {', '.join(submitted)}; scancel them, or go on{missing}:", file=sys.stderr)
            for nodes in todo:
                print(f"    sbatch {shlex.join(words(nodes))}", file=sys.stderr)
        elif todo:
            for file in created:
                file.unlink(missing_ok=True)
                print(f"removed: {file}")
    return FAILED if todo else OK


def _sbatch(words: Sequence[str]) -> tuple[str, list[str]]:
    """Submit a job; return its number, and the option that sends further jobs to its cluster, if that is named.

    Raises SubprocessError, also unless one line of the output is what ``--parsable`` prints: a site's own program
    in the place of ``sbatch`` may print more, or ignore the option.
    """
    from hpcdl.registry import shortened

    command = ["sbatch", "--parsable", *words]
    asked = f"sbatch {shlex.join(words)}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="backslashreplace", check=False)
    except OSError as error:
        raise subprocess.SubprocessError(f"{asked}: {error.strerror}") from None
    printed = message(" ".join(done.stderr.split()))
    if done.returncode:
        raise subprocess.SubprocessError(f"{asked}: exit code {done.returncode}: {printed}")
    if done.stderr.strip():
        print(f"sbatch: {printed}", file=sys.stderr)
    lines = [re.fullmatch(r"([0-9]+)(?:;([\w.-]+))?", line.strip()) for line in done.stdout.splitlines()]
    if len(jobs := [line for line in lines if line]) != 1:
        answer = f"printed {shortened(done.stdout)}, no job's number; squeue --me shows if there is a job"
        raise subprocess.SubprocessError(f"{asked}: {answer}")
    number, cluster = jobs[0].groups()
    return number, [f"--clusters={cluster}"] if cluster else []


COMMAND: Final = Command(
    15,
    "write a batch script for Slurm",
    "Write a batch script for Slurm, as plain as one written by hand. Partition, account, further directives, "
    "modules, launcher, container and environment come from a site profile, ~/.config/hpcdl/site.toml or "
    "/etc/hpcdl/site.toml.",
    "hpcdl sbatch interconnect --nodes 16 --time 30",
)
