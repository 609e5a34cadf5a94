"""Warnings: doubts about the measured numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.run.cores import UNKNOWN, oversubscribed, usable_cores
from hpcdl.analysis.run.disturbance import NOTED_STEAL
from hpcdl.analysis.run.launches import warmup_of
from hpcdl.report.formats.cells import plural, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcdl.analysis.run.scaling import Record
    from hpcdl.trace.run import Run


def failures(records: Sequence[Record]) -> list[str]:
    """Return the cases that failed or whose result is wrong."""
    return [
        f"case {case_name(record)}: {record.get('error') or 'wrong result'}"
        for record in records
        if record.get("error") or record.get("correct") is False
    ]


def unfinished(run: Run) -> list[dict[str, Any]]:
    """Return the cases that failed before they had a result: case, rank (None: unknown), error."""
    return _listed(run, "failed_cases")


def not_run(run: Run) -> list[dict[str, Any]]:
    """Return the cases that cannot be run where this run was made: case, error."""
    return _listed(run, "cases_not_run")


def _listed(run: Run, name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = run.environment.get(name, [])
    return entries


def without_result(run: Run) -> list[str]:
    """One line per case that failed before it had a result, and one per reason not to run cases."""
    lines = []
    for case in unfinished(run):
        rank = "" if case.get("rank") is None else f"rank {case['rank']}: "
        lines.append(f"FAILED case {case.get('case')}: {rank}{case.get('error')}")
    reasons: dict[str, list[str]] = {}
    for case in not_run(run):
        reasons.setdefault(str(case.get("error")), []).append(str(case.get("case")))
    return lines + [f"NOT RUN {', '.join(cases)}: {why}" for why, cases in reasons.items()]


def failed_processes(run: Run) -> list[str]:
    """Return one line per fault-injection case: the rank that failed and its step, or that none did."""
    lines = [
        f"case {case_name(fields)}: {fields['process_failure']} failed, and the others went on."
        if fields.get("process_failure")
        else f"case {case_name(fields)}: no rank failed; the failure to inject was {fields['failure']}."
        for fields in run.described
        if fields.get("failure")
    ]
    return list(dict.fromkeys(lines))


def case_name(record: Mapping[str, Any]) -> str:
    """Return the case's name with its ranks and seed."""
    seed = "" if record["seed"] is None else f", seed {record['seed']}"
    return f"{record['case'] or record['aggregation']} ({plural(record['ranks'], 'rank')}{seed})"


STALL: Final = 100
"""Ratio of a step to the median step beyond which a warning names it,"""
STALL_SECONDS: Final = 1.0
"""if it also takes at least this long (s)."""
NAMED: Final = 3
"""Cases of one warning that are named; more are counted."""


def warnings(run: Run, records: Sequence[Record]) -> list[str]:
    """Return all doubts about the numbers, worst first."""
    measured = [record for record in records if not record.get("network")]  # the others are simulated
    return [
        *_mixed(run),
        *_emulated(run),
        *_incomplete(run, measured),
        *_oversubscribed(run, measured),
        *_disturbed(measured),
        *_stalls(run),
        *_above_the_ceiling(measured),
        *(_machine(run.environment) if measured or not records else ()),
    ]


def _ran_in(run: Run) -> dict[str, tuple[Mapping[str, Any], int]]:
    """Return the environments that cases of ``run`` ran in, by key, with the number of their cases."""
    grown_most: dict[str, tuple[Mapping[str, Any], int]] = {}
    for index in range(len(run.described)):
        environment = run.environment_of(index)
        key = str(environment.get("key"))
        grown_most[key] = environment, grown_most.get(key, (environment, 0))[1] + 1
    return grown_most


def _mixed(run: Run) -> Iterator[str]:
    """Cases of one run that ran on several machines, or with several libraries."""
    places = _ran_in(run)
    if len(places) > 1:
        listed = "; ".join(
            f"{plural(cases, 'case')} with {_place(environment)}" for environment, cases in places.values()
        )
        yield f"MIXED: the cases ran in {len(places)} environments, which no table keeps apart: {listed}."


def _place(environment: Mapping[str, Any]) -> str:
    mpi, cpu = environment.get("mpi"), environment.get("cpu")
    mpi, cpu = (part if isinstance(part, dict) else {} for part in (mpi, cpu))
    hosts = {str(rank.get("hostname", "")) for rank in environment.get("ranks") or ()}
    named = f"{min(hosts)} and {len(hosts) - 1} more" if len(hosts) > 1 else "".join(hosts)
    words = [f"{mpi.get('library', UNKNOWN)} {mpi.get('version', '')}".strip()]
    words += [f"on {named}"] if named else []
    words += [f"({cpu['model']})"] if cpu.get("model", UNKNOWN) != UNKNOWN else []
    words += ["EMULATED"] if environment.get("emulated") else []
    return " ".join([*words, f"[{environment.get('key', UNKNOWN)}]"])


def _emulated(run: Run) -> Iterator[str]:
    """Emulated hosts, which all other records describe as nodes."""
    places = _ran_in(run) or {"": (run.environment, 0)}
    for environment, cases in places.values():
        testbed = environment.get("emulated")
        if testbed:
            slow = "".join(f", {host} to {rate}" for host, rate in testbed["slow"].items())
            slow += f", the link between two switches to {testbed['trunk']}" if testbed.get("trunk") else ""
            which = f" of {plural(cases, 'case')}" if len(places) > 1 else ""
            yield (
                f"EMULATED: the nodes{which} are {plural(testbed['hosts'], 'host')} of hpcdl testbed on one "
                f"machine, links limited to {testbed['rate']}{slow}. They share its cores and memory; this is no "
                "cluster."
            )


def _incomplete(run: Run, records: Sequence[Record]) -> Iterator[str]:
    if not run.complete:
        yield "the run is not complete: cases of the suite are missing."
    short: dict[int, list[str]] = {}
    for record in records:
        alive = record["ranks"] - bool(record.get("process_failure"))
        if 0 < record["ranks_recorded"] < alive:
            yield f"case {case_name(record)}: only {plural(record['ranks_recorded'], 'rank')} left a trace."
        elif record["measured_steps"] < 6 and not record.get("error"):
            short.setdefault(record["measured_steps"], []).append(case_name(record))
    for steps, names in sorted(short.items()):
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        listed = f"case {', '.join(names[:NAMED])}{more}"
        yield f"{plural(steps, 'measured step')}, too few for an interval: {listed}."
    kinds = {
        "dropped": ("event", "steps and updates are all there"),
        "dropped_updates": ("update", "staleness is that of the first ones; steps and accuracy are all there"),
    }
    for name, (word, rest) in kinds.items():
        dropped = int(run.ranks[name].sum()) if name in run.ranks else 0
        if dropped:
            yield f"{plural(dropped, word)} dropped at the limit: {rest}."


def _oversubscribed(run: Run, records: Sequence[Record]) -> Iterator[str]:
    """Ranks x threads against the cores that the ranks of the fullest node may use."""
    cores = usable_cores(run.environment)
    if cores is None:
        yield "cores available to the ranks are unknown: oversubscription was not checked."
        return
    worst = oversubscribed(run, records)
    if worst:
        scales = ", ".join(
            f"{plural(ranks, 'rank')} want{'s' * (ranks == 1)} {wanted}" for ranks, wanted in sorted(worst.items())
        )
        yield f"OVERSUBSCRIBED: {cores:g} cores per node; {scales}. These cases do not measure scaling."


def _disturbed(records: Sequence[Record]) -> Iterator[str]:
    """Cases and launches whose ranks lost time to other processes or machines."""
    if disturbed := [record for record in records if record.get("disturbed")]:
        yield (
            f"DISTURBED: {plural(len(disturbed), 'case')} without a verdict, which rankings and later "
            f"comparisons leave out; --json names the causes. The first, {case_name(disturbed[0])}: "
            f"{disturbed[0]['disturbed']}."
        )
    if left_out := sum(record.get("launches_left_out", 0) for record in records):
        launches = "1 launch was" if left_out == 1 else f"{left_out} launches were"
        yield f"{launches} disturbed; the undisturbed launches of the same cases count."
    stolen = [share for record in records if (share := record.get("stolen") or 0.0) >= NOTED_STEAL]
    if stolen:
        low, high = (f"{100 * share:.0f}" for share in (min(stolen), max(stolen)))
        yield (
            f"the hypervisor took {low if low == high else f'{low} to {high}'} % of a rank's time in "
            f"{plural(len(stolen), 'case')}: a ratio's interval is wider where its two sides lost unequal shares."
        )


def _stalls(run: Run) -> Iterator[str]:
    """Steps that took so much longer than the median that another program must have used the machine."""
    for index, fields in enumerate(run.described):
        steps = run.steps[run.steps["case_index"] == index]
        steps = steps[steps["step"] >= warmup_of(fields)]
        times = (steps["end"] - steps["begin"]) * 1e-9
        if fields.get("network") or not len(times):
            continue
        longest, usual = float(times.max()), float(times.median())
        if longest > STALL_SECONDS and longest > STALL * usual:
            times_the_usual = f"{longest / usual:.0f} times the median" if usual else "the median being 0 s"
            yield f"case {fields.get('case')}: a step took {seconds(longest)}, {times_the_usual}."


def _above_the_ceiling(records: Sequence[Record]) -> Iterator[str]:
    """Training with communication that was faster than without."""
    faster: dict[int, int] = {}
    for record in records:
        if record.get("beats_ceiling") and not (record.get("disturbed") or record["ceiling_disturbed"]):
            faster[record["ranks"]] = faster.get(record["ranks"], 0) + 1
    for ranks, cases in faster.items():
        yield (
            f"on {plural(ranks, 'rank')} {plural(cases, 'case')} took less time than training without "
            "communication: they were not measured under like conditions. Repeat the run, with --launches if it "
            "stays so."
        )


def _machine(environment: Mapping[str, Any]) -> Iterator[str]:
    if not environment:
        yield "the environment was not recorded."
        return
    cpu = environment.get("cpu")
    governor = cpu.get("governor", UNKNOWN) if isinstance(cpu, dict) else UNKNOWN
    if governor not in {"performance", UNKNOWN}:
        yield f"the frequency governor is {governor!r}: clocks may have changed while measuring."
    libraries, ports = environment.get("libraries"), environment.get("infiniband")
    active = isinstance(ports, dict) and any("ACTIVE" in str(port.get("state")) for port in ports.values())
    if active and isinstance(libraries, dict) and not (libraries.get("verbs") or libraries.get("shared_memory")):
        yield "InfiniBand is up, but no verbs library was loaded: messages may have gone over TCP."
    git = environment.get("git")
    if isinstance(git, dict) and git.get("changed_files"):
        changed = plural(git["changed_files"], "changed file")
        yield f"hpcdl has {changed} beyond commit {str(git.get('commit'))[:12]}."
    for name, more in grown(environment.get("counters"), environment.get("counters_after")):
        yield f"{name} grew by {more} during the run."


def grown(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Error counters that rose between two answers of ``hpcdl.launch.environment.counters``."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in after.items():
            yield from grown(before.get(name), value, f"{path} {name}".strip())
    elif isinstance(before, int) and isinstance(after, int) and after > before and _is_error(path):
        yield path, after - before


def _is_error(path: str) -> bool:
    name = path.rsplit(" ", 1)[-1].lower()
    return any(word in name for word in ("err", "drop", "discard", "retrans", "downed", "recover", "out_of_seq"))
