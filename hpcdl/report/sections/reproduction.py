"""Figures of papers next to ours; settings, job and statistics in words; command and suite that repeat the run."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from hpcdl.analysis.run.disturbance import UNKNOWN, facts
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.cases.keys.suite_tables import columns_with
from hpcdl.report.formats.cells import NONE, plural, volume
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Table
from hpcdl.report.run import published_results
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import Names, in_words, text_of
from hpcdl.trace.files import JsonMapping


def published_answer(findings: Findings) -> Answer | None:
    """Return how many figures of the suite's papers are reproduced, and those that are not."""
    return published_results.answer(findings.papers, findings.records)


PUBLISHED: Final = Declaration(
    20,
    lambda findings: published_results.section(findings.papers, findings.records),
    answer=published_answer,
    figures=(lambda findings: published_results.charts(findings.papers, findings.records),),
    name="published",
)


def settings_page(findings: Findings) -> Section:
    """Return the shared settings, a row per problem, and a row per method where strategies are compared."""
    settings = findings.settings
    tables = [Table("", ("setting", "differs in"), settings.rows, 2)] if settings.rows else []
    tables += _methods([record for record in findings.records if record.kind == "train"])
    return Section("Settings", [f"{settings.common}."] if settings.common else [], tables=tables)


def _methods(trained: Sequence[Record]) -> list[Table]:
    """Return a table of the methods if several strategies are compared; shared columns are left out."""
    if len({record.training for record in trained}) < 2:
        return []
    names = Names(trained)
    # the section Tuning has the others
    columns = [name for name in columns_with("method") if not name.startswith("tuning")]
    shown = dict.fromkeys(
        (names(record), in_words(names(record), record), *(text_of(record, name) or NONE for name in columns))
        for record in trained
    )
    header = ("method", "in words", *(name.replace("_", " ") for name in columns))
    alike = [name for name, cells in zip(header, zip(*shown, strict=True), strict=True) if len(set(cells)) == 1]
    return [Table("", header, list(shown), len(header)).without(*alike)]


SETTINGS: Final = Declaration(900, settings_page, rows=48)
LAUNCHERS: Final = (
    *("SLURM_", "HPCDL_", "PMIX_", "PRTE_", "OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_num_procs"),
    *("OMPI_MCA_orte", "OMPI_MCA_initial"),
)
"""Beginnings of variables that launchers set for their processes."""


def job_page(findings: Findings) -> Section:
    """Return one row per fact."""
    run, env, cores = findings.run, findings.run.environment, findings.usable_cores
    cpu, mpi, git, software = (facts(env, name) for name in ("cpu", "mpi", "git", "software"))
    changed, ranks = git.get("changed_files"), env.get("ranks") or []
    cards = {**facts(env, "network"), **facts(env, "infiniband")}
    packages = ("hpcdl", "python", "numpy", "mpi4py", "numba", "cupy", "blas")
    cpu_of = f"({cpu.get('physical_cores', UNKNOWN)} cores, SMT {cpu.get('smt', UNKNOWN)})"
    shown = {
        "run": f"{findings.name}{'' if run.complete else ' (not complete)'}",
        "date": env.get("date"),
        "nodes": _words(mpi.get("nodes"), "(emulated on one machine)" if env.get("emulated") else ""),
        "MPI": _words(mpi.get("library"), mpi.get("version")),
        "settings": _settings(facts(env, "variables")),
        "pinning": "; ".join(f"{number}: {rank.get('affinity', UNKNOWN)}" for number, rank in enumerate(ranks[:8]))
        + (f"; ... {len(ranks)} ranks" if len(ranks) > 8 else ""),
        "cores per node": f"{cores:g} usable" if cores is not None else None,
        "processor": _words(cpu.get("model"), cpu_of),
        "governor": cpu.get("governor"),
        "memory": volume(memory) if isinstance(memory := env.get("memory_bytes"), int) else None,
        "kernel": env.get("kernel"),
        "network": ", ".join(
            f"{name} ({card.get('driver')}, {card.get('rate')})"
            for name, card in cards.items()
            if card.get("driver", UNKNOWN) != UNKNOWN
        ),
        "GPU": _gpu(facts(env, "gpu")) if "gpu" in env else None,
        "software": ", ".join(
            f"{name} {software[name]}" for name in packages if software.get(name, UNKNOWN) != UNKNOWN
        ),
        "commit": _words(git.get("commit"), f"and {plural(changed, 'changed file')}" if changed else ""),
        "timer": _words(facts(env, "timer").get("implementation"), env.get("clocksource")),
        "environment key": env.get("key"),
    }
    rows = [(name, str(value or UNKNOWN)) for name, value in shown.items()]
    return Section("Job", tables=[Table("", ("fact", "value"), rows, 2)])


def _words(*parts: object) -> str:
    return " ".join(str(part).strip("\0 \n").split("\n")[0] for part in parts if part not in {None, UNKNOWN, ""})


def _settings(variables: Mapping[str, str]) -> str:
    """Return the user's settings; variables that a launcher sets for its processes are left out."""
    shown = [
        f"{name}={value}"
        for name, value in variables.items()
        if not name.startswith(LAUNCHERS) and (name.startswith("OMPI_MCA_") or not name.startswith("OMPI_"))
    ]
    return ", ".join(shown[:8]) or "none"


def _gpu(gpu: JsonMapping) -> str:
    names = [str(device.get("name")) for device in gpu.get("devices", [])]
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return f"{', '.join(counted)}, driver {gpu.get('driver')}" if counted else "none seen"


JOB: Final = Declaration(910, job_page, rows=30)
HOW: Final = (
    "A step, or one repetition of a collective, takes as long as its slowest rank. Times are medians over the "
    "steps after warm-up; of several launches: median of the launches' medians. Their 95 % interval: Student's t "
    "of the logarithms over launches; from 6 launches on, order statistics. Two methods are compared by quotients "
    "of medians. Verdicts and their intervals are t tests of the logarithms, paired by launch from three launches "
    "on, by seed for accuracies; the interval is wider where several methods are compared: if all of them are "
    "equal, at most one report in twenty finds a difference. One launch has no interval and gives no verdict. "
    "Disturbed launches do not count. A case whose launches are all disturbed has no verdict and no place in a "
    "ranking."
)
SCALING: Final = (
    "Efficiency and speed-up are relative to the base: the cases on one rank. One rank does not communicate, so "
    "that all aggregations run the same program there; these cases are pooled. The base of a method has the "
    "compression, optimizer and strategy of the method if there is such a case on one rank; otherwise it is "
    "synchronous training without compression. Without any case on one rank the base is the method itself on its "
    "smallest number of ranks. Near-linear: the test shows an efficiency above 0.90. Not near-linear: below 0.90. "
    "Inconclusive: neither. Exposed communication = step time - step time of the no-communication baseline "
    "(aggregation none) on the same number of ranks."
)
THROUGHPUT: Final = (
    "If ranks do not step together, or their steps differ, a step is the mean time in which all ranks together "
    "process one global batch. It is measured from the end of the last worker's warm-up until the first worker "
    "ends, without evaluations on the test set. Its interval is Student's t over windows of equally many images."
)
ALL: Final = (
    "All rows and figures: report.html, or `hpcdl report RUN -o page.html`. "
    "All numbers: `-o table.csv`, or `--json`."
)


def method_page(findings: Findings) -> Section:
    """Return the statistics in words, warm-up counts, command and suite."""
    run, records = findings.run, findings.records
    measured = [record for record in records if not (record.network or record.log)]  # simulated: once, exactly
    kinds = group_by_key(((record.kind, record.warmup_steps), record.measured_steps) for record in measured)
    counts = [
        f"Cases of kind {kind}: {plural(warmup, 'warm-up step')} left out, then "
        f"{low if low == high else f'{low} to {high}'} measured steps per case."
        for (kind, warmup), steps in kinds.items()
        for low, high in [(min(steps), max(steps))]
    ]
    paragraphs = [HOW]
    paragraphs += [THROUGHPUT] if not all(record.keeps_step for record in records) else []
    paragraphs += [SCALING] if any(record.base_ranks for record in records) else []
    points = [*counts, ALL, f"Command: `{_command(run.environment.get('command'))}`"]
    return Section("Method and how to reproduce", paragraphs, points, verbatim=run.suite)


def _command(given: object) -> str:
    """Return the command line; the program is called by its name, wherever it was installed."""
    if not isinstance(given, list) or not given:
        return str(given or UNKNOWN)
    program, *arguments = map(str, given)
    if program.endswith(("hpcdl/__main__.py", "bin/hpcdl")):
        program = "hpcdl"
    return shlex.join([program, *arguments])


METHOD_SECTION: Final = Declaration(920, method_page)
