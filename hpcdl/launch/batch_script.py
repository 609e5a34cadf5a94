"""Batch scripts for Slurm."""

import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from hpcdl.exit_codes import UsageError, refused
from hpcdl.registry import nearest, shortened
from hpcdl.trace.files import read_toml

Options: TypeAlias = dict[str, str | int | None]
"""Values of Slurm's options; None: the option is left out; True: it has no value."""


@dataclass(frozen=True)
class SiteProfile:
    """Settings that all batch scripts of a cluster share."""

    partition: str | None = None
    """Slurm's partition; None: the cluster's default."""
    account: str | None = None
    """The account to be charged; None: the user's default."""
    modules: tuple[str, ...] = ()
    launcher: str = "mpirun"
    """The command that starts ranks, without their number, such as ``srun --mpi=pmi2``."""
    environment: tuple[str, ...] = ()
    """Lines of shell that make ``hpcdl`` available, such as ``source ~/venv/bin/activate``."""
    directives: tuple[str, ...] = ()
    """Further options of ``sbatch``, such as ``qos=high``; see :func:`directive`."""
    container: str | None = None
    """Image of Apptainer that has ``hpcdl``; None: ``hpcdl`` is found without one."""


def places(environment: Mapping[str, str]) -> list[Path]:
    """Return where profiles may lie: the user's first, then that of the whole system."""
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config"
    folders = [home, *(environment.get("XDG_CONFIG_DIRS") or "/etc/xdg:/etc").split(":")]
    return [Path(folder) / "hpcdl/site.toml" for folder in folders]


def site_profile(path: Path | None = None, environment: Mapping[str, str] = os.environ) -> SiteProfile:
    """Read the profile at ``path``, or the first of :func:`places`, or return the defaults. Raises UsageError."""
    path = path or next((file for file in places(environment) if file.is_file()), None)
    if path is None:
        return SiteProfile()
    with refused():
        table = read_toml(path)
    defaults = vars(SiteProfile())
    for key, value in table.items():
        if key not in defaults:
            raise UsageError(f"{path}: {key}: unknown key{nearest(key, defaults)}")
        lines = [_line(item, f"{path}: {key}") for item in (value if isinstance(value, list) else [value])]
        table[key] = tuple(lines) if isinstance(defaults[key], tuple) else _line(value, f"{path}: {key}")
    for text in table.get("directives", ()):
        directive(text, f"{path}: directives:")
    return SiteProfile(**table)


OPTIONS_OF_HPCDL: Final = {
    "nodes": "--nodes",
    "ntasks": "--nodes and --ranks-per-node",
    "ntasks-per-node": "--ranks-per-node",
    "tasks-per-node": "--ranks-per-node",
    "ntasks-per-gpu": "--ranks-per-node",
    "cpus-per-task": "--cpus-per-rank",
    "cpus-per-gpu": "--cpus-per-rank",
    "gpus-per-node": "--gpus-per-node",
    "time": "--time",
    "array": "--launches",
}
"""Directives on which the rest of a script depends, with the options of ``hpcdl sbatch`` that set them."""
OPPOSITES: Final = {"no-requeue": "requeue", "oversubscribe": "exclusive"}
OPPOSITES.update({name: opposite for opposite, name in OPPOSITES.items()})
"""Options that a directive replaces, besides the one of its own name."""
WHOLE_NAMES: Final = {*OPTIONS_OF_HPCDL, *OPPOSITES, "chdir", "signal"}
"""Options that are recognized by their names, which ``sbatch`` would also take abbreviated."""


def directive(text: str, where: str) -> tuple[str, str | bool]:
    """Return the name and value of a line ``#SBATCH --NAME=VALUE``; the value True of ``#SBATCH --NAME``.

    Raises UsageError, beginning with ``where``, for another form and for a line that the script cannot have.
    """
    match = re.fullmatch(r"(?:--)?([a-z][a-z0-9-]+)(?:=(\S(?:.*\S)?))?", text)
    name, value = match.groups() if match else ("", None)
    if match is None:
        reason = "must be NAME or NAME=VALUE of an option of sbatch, such as qos=high"
    elif name in OPTIONS_OF_HPCDL:
        reason = f"use {OPTIONS_OF_HPCDL[name]} of hpcdl sbatch"
    elif name == "chdir":
        reason = "paths in the script begin in the folder where it is submitted: submit it in that folder"
    elif name == "signal" and not re.fullmatch(r"B:USR1@[0-9]{1,5}", value or ""):
        reason = "must be signal=B:USR1@SECONDS, which the script waits for"
    elif name != "gpus" and any(option.startswith(name) for option in WHOLE_NAMES - {name}):
        reason = f"must be a whole name{nearest(name, WHOLE_NAMES)}"
    else:
        return name, True if value is None else value
    raise UsageError(f"{where} {shortened(text)}: {reason}")


def asks_for_gpus(directives: Iterable[str]) -> bool:
    """Return True if one of the directives asks for GPUs, as ``gres=gpu:4`` and ``gpus-per-task=1`` do."""
    return any(re.match(r"(--)?(gpus\b|(gres|tres-per-task)=.*\bgpu\b)", text) for text in directives)


def _add_directives(options: Options, directives: Iterable[str]) -> None:
    """Add the lines of ``directives``, which replace those of the same name and their opposites."""
    for text in directives:
        name, value = directive(text, "--directive")
        options.pop(OPPOSITES.get(name, ""), None)
        options[name] = value


def _line(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise UsageError(f"{where}: must be text of one line, not {value!r}")
    return value


WARNING_SECONDS: Final = 120
"""Time before a job's limit at which Slurm signals it: for the end of the case that is running."""


@dataclass(frozen=True)
class BatchJob:
    """Resources and command of a batch script. Raises UsageError for a character that is not printable."""

    suite: str
    """A suite file or the name of one that comes with hpcdl."""
    name: str
    """The suite's name, for the job and its run folder."""
    command: str
    """The command line that the script is written by."""
    nodes: tuple[int, ...]
    """Numbers of nodes. With several there is a job for each, and every case runs on all of its ranks."""
    ranks_per_node: int = 1
    cpus_per_rank: int | None = None
    gpus_per_node: int | None = None
    time: str | None = None
    """Slurm's time limit; None: the partition's default."""
    launches: int = 1
    """Tasks of a job array, one at a time; each is an independent launch."""
    exclusive: bool = True
    """Nodes run no other job, which would share cores and links."""
    directives: tuple[str, ...] = ()
    """As the site's, which they replace."""
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for word in (self.suite, self.command, *self.directives, *self.options):
            if not word.isprintable():
                raise UsageError(f"{ascii(word)[:80]}: a script cannot have characters that are not printable")


def batch_script(job: BatchJob, site: SiteProfile) -> str:
    """Return the text of a batch script; the same text for the same arguments."""
    several, is_array = len(job.nodes) > 1, job.launches > 1
    where = "One job runs all cases, small ones on its first ranks."
    if several:
        submit = f"sbatch --nodes={job.nodes[0]} SCRIPT"
        where = (
            f"Every job runs all cases on all of its ranks. Submit it with:  {submit}  for each number of nodes."
        )
    options: Options = {
        "nodes": None if several else job.nodes[0],
        "ntasks-per-node": job.ranks_per_node,
        "cpus-per-task": job.cpus_per_rank,
        "gpus-per-node": job.gpus_per_node,
        "time": job.time,
        "array": f"1-{job.launches}%1" if is_array else None,
        "exclusive": job.exclusive or None,
        "output": "%x-%A_%a.out" if is_array else "%x-%j.out",
        "open-mode": "append",
        "signal": f"B:USR1@{WARNING_SECONDS}",
        "requeue": True,
    }
    directives = (*site.directives, *job.directives)
    _add_directives(options, directives)
    if job.gpus_per_node is not None and asks_for_gpus([f"gres={options.get('gres')}"]):
        raise UsageError(f"--gpus-per-node: gres={options['gres']} asks for the GPUs of a node already")
    requeued, seconds = "requeue" in options, str(options["signal"]).partition("@")[2]
    about = (
        where,
        "Options after the script's name go to hpcdl run:  sbatch SCRIPT --case '*ring*'",
        f"{seconds} s before the time limit Slurm sends SIGUSR1 to this shell, which passes it on. hpcdl ends the "
        "case that is running and exits with code 75; "
        + (_REQUEUE if requeued else "hpcdl run --resume -o FOLDER goes on with the cases that are left."),
    )
    on_gpus = job.gpus_per_node is not None or asks_for_gpus(directives)
    suite = shlex.quote(f"./{job.suite}" if job.suite.startswith("-") else job.suite)
    words = [_hpcdl(site, on_gpus=on_gpus), "run", suite]
    words += ["--set", "case.ranks=$SLURM_NTASKS"] if several else []
    words += [] if job.cpus_per_rank is None else ["--set", f"case.threads={job.cpus_per_rank}"]
    # since Slurm 22.05 srun takes no number of cores from sbatch
    cores = " ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}" * (site.launcher.split()[0] == "srun")
    body = _BODY.format(
        identity="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" if is_array else "$SLURM_JOB_ID",
        name=job.name,
        command=" ".join([*words, *map(shlex.quote, job.options)]),
        launcher=site.launcher + cores,
        count=_COUNT * requeued,
        requeue=_REQUEUE_JOB * requeued,
    )
    return _script(job.name, job.command, about, options, site) + body


def report_script(job: BatchJob, site: SiteProfile) -> str:
    """Return the text of a batch script that reports the runs of ``job`` together."""
    about = ["One report of the runs whose folders are the arguments. It begins when their jobs have ended."]
    options: Options = {"ntasks": 1, "output": "%x-%j.out"}
    _add_directives(options, site.directives)
    options.pop("signal", None)  # it would end this script
    head = _script(f"{job.name}-report", f"{job.command} --submit", about, options, site)
    return head + _REPORT.format(name=job.name, hpcdl=_hpcdl(site))


def _hpcdl(site: SiteProfile, *, on_gpus: bool = False) -> str:
    """Return the command line of hpcdl, in the site's container if it has one."""
    if site.container is None:
        return "hpcdl"
    return f"apptainer exec {'--nv ' * on_gpus}{shlex.quote(site.container)} hpcdl"


def _script(name: str, command: str, about: Iterable[str], options: Options, site: SiteProfile) -> str:
    """Return the head of a script: comments, Slurm's options, and what makes the programs available."""
    lines = ["#!/bin/bash", f"# Written by: {command}", "#"]
    for text in about:
        lines += [f"# {line}" for line in textwrap.wrap(text, 108, break_on_hyphens=False)]
    whole = {"job-name": f"hpcdl-{name}", "partition": site.partition, "account": site.account, **options}
    for option, value in whole.items():
        if value is not None:
            lines.append(f"#SBATCH --{option}" + ("" if value is True else f"={shlex.quote(str(value))}"))
    modules = [f"module load {shlex.quote(module)}" for module in site.modules]
    programs = _PROGRAMS.format(hpcdl=_hpcdl(site).split()[0], launcher=site.launcher.split()[0])
    return "\n".join([*lines, "", *modules, *site.environment, "set -u", programs])


_REQUEUE: Final = (
    "the job is requeued under its number and goes on with the cases that are left. A job that finished no case "
    "is not requeued: it would never end."
)
_PROGRAMS: Final = """\
for program in {hpcdl} {launcher}; do
    command -v $program >/dev/null || {{
        echo "$program is not found: load it here, or before sbatch" >&2
        exit 2
    }}
done
"""

_BODY: Final = """
job={identity}
folder=runs/{name}-$SLURM_JOB_NUM_NODES-nodes-$job
{count}
{launcher} -n "$SLURM_NTASKS" {command} --resume "$@" -o "$folder" &
ranks=$!
trap 'kill -USR1 $ranks' USR1
wait $ranks
code=$?
while kill -0 $ranks 2>/dev/null; do # the signal has ended the wait, not the ranks
    wait $ranks
    code=$?
done

{requeue}exit $code
"""
_COUNT: Final = """\
finished_cases() {
    find "$folder/parts" -name '*.h5' 2>/dev/null | wc -l
}
before=$(finished_cases)
"""
_REQUEUE_JOB: Final = """\
if [ $code -eq 75 ] && [ "$(finished_cases)" -gt "$before" ]; then
    scontrol requeue "$job"
elif [ $code -eq 75 ]; then
    echo "no case was finished within the time limit, so the job is not requeued: give it more time" >&2
fi
"""

_REPORT: Final = """
page=runs/{name}-${{SLURM_JOB_ID:-report}}
runs=()
for run in "$@"; do
    if ls "$run"/parts/*.h5 >/dev/null 2>&1; then
        runs+=("$run")
    else
        echo "$run: no case has finished"
    fi
done
if [ ${{#runs[@]}} -eq 0 ]; then
    echo "no run has a finished case: there is nothing to report" >&2
    exit 1
fi
{hpcdl} report "${{runs[@]}}" --together -o "$page.md" && {hpcdl} report "${{runs[@]}}" --together -o "$page.html"
"""
