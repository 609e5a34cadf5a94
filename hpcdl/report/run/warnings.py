"""Warnings: doubts about the measured numbers, with remedies."""

from collections.abc import Iterator, Sequence

from hpcdl.analysis.run.disturbance import NOTED_STEAL, UNKNOWN, facts, usable_cores, wanted
from hpcdl.analysis.run.pooling import machine_key
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.launch.testbed import bit_rate, usual_rate
from hpcdl.report.formats.cells import plural
from hpcdl.report.run import link_counters
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.trace.link_counters import recorded
from hpcdl.trace.run import Run


def failures(records: Sequence[Record]) -> list[str]:
    """Return the cases that failed or whose result is wrong."""
    return [
        f"case {case_name(record)}: {record.error or 'wrong result'}"
        for record in records
        if record.error or record.correct is False
    ]


def unfinished(run: Run) -> list[JsonObject]:
    """Return the cases that failed before they had a result: case, rank (None: unknown), error."""
    return list(run.environment.get("failed_cases", ()))


def not_run(run: Run) -> list[JsonObject]:
    """Return the cases that cannot be run where this run was made: case, error."""
    return list(run.environment.get("cases_not_run", ()))


def without_result(run: Run) -> list[str]:
    """One line per case that failed before it had a result, and one per reason not to run cases."""
    lines = []
    for case in unfinished(run):
        rank = "" if case.get("rank") is None else f"rank {case['rank']}: "
        lines.append(f"FAILED case {case.get('case')}: {rank}{case.get('error')}")
    reasons = group_by_key((str(case.get("error")), str(case.get("case"))) for case in not_run(run))
    return lines + [f"NOT RUN {', '.join(cases)}: {why}" for why, cases in reasons.items()]


def failed_processes(run: Run) -> list[str]:
    """Return one line per fault-injection case: the rank that failed and its step, or that none did."""
    lines = [
        f"case {case_name(record)}: {record.process_failure} failed, and the others went on."
        if record.process_failure
        else f"case {case_name(record)}: no rank failed; the failure to inject was {record.failure}."
        for record in map(Record.of, run.described)
        if record.failure
    ]
    return list(dict.fromkeys(lines))


def case_name(record: Record) -> str:
    """Return the case's name with its ranks and seed."""
    seed = "" if record.seed is None else f", seed {record.seed}"
    return f"{record.case or record.aggregation} ({plural(record.ranks, 'rank')}{seed})"


def warnings(run: Run, records: Sequence[Record]) -> list[str]:
    """Return all doubts about the numbers, worst first."""
    measured = [record for record in records if not record.network]  # the others are simulated
    recorded_here = [record for record in measured if not record.log]
    return [
        *(f"{line}." for line in run.copies),
        *_diverged(records),
        *_tuning(records),
        *_repeated(run),
        *_mixed(run),
        *_emulated(run),
        *_logs(run, measured),
        *_incomplete(run, recorded_here),
        *_oversubscribed(run, measured),
        *_disturbed(recorded_here),
        *_unhealthy(measured),
        *(_machine(run.environment) if measured or not records else ()),
    ]


def diverged(records: Sequence[Record]) -> list[Record]:
    """Return the records of trainings that diverged."""
    return [record for record in records if record.diverged_step is not None]


def _diverged(records: Sequence[Record]) -> Iterator[str]:
    if cases := diverged(records):
        first = f"at step {cases[0].diverged_step} on rank {cases[0].diverged_rank}: {case_name(cases[0])}"
        yield (
            f"{plural(len(cases), 'case')} diverged: a loss or parameter is not finite, so that there is no "
            f"accuracy and no target is reached. Try a lower learning rate. The first case diverged {first}."
        )


def _tuning(records: Sequence[Record]) -> Iterator[str]:
    if cases := [record for record in records if record.tuning_edge]:
        yield (
            f"The best trial of {plural(len(cases), 'case')} is at an edge of its grid. Add one value "
            f"there to all grids, twice at most. The first case is {case_name(cases[0])}, {cases[0].tuning_edge}."
        )


def _repeated(run: Run) -> Iterator[str]:
    drawn = [(fields.get("digest"), draw) for fields in run.described if (draw := fields.get("draw")) is not None]
    if count := run.environment.get("repeated_draws", 0) + len(drawn) - len({*drawn}):
        yield (
            f"Random times of {plural(count, 'case')} are the same as in an earlier launch: simulated cases count "
            "once, and intervals of measured cases lack this variation. hpcdl run --launches N draws new ones."
        )


def _environments(run: Run) -> list[JsonMapping]:
    every = (run.environment_of(index) for index in range(len(run.described)))
    return list({machine_key(environment): environment for environment in every}.values())


def _mixed(run: Run) -> Iterator[str]:
    keys = [str(environment.get("key")) for environment in _environments(run)]
    if len(keys) > 1:
        yield (
            f"The cases ran in {len(keys)} environments ({', '.join(keys)}), which tables do not separate: "
            "differences may come from the machine or the software. Run all cases in one environment."
        )


def _logs(run: Run, records: Sequence[Record]) -> Iterator[str]:
    """Say what the times of logs are, how many launches there are, and what the logs do not state."""
    for log, record in {record.log: record for record in records if record.log}.items():
        library = run.environment["mpi"].get("library")
        known = {"nodes": record.nodes, "placement": record.placement, "library": library}
        unknown = ", ".join(name for name, value in known.items() if not value)
        count = "one launch" if record.launches == 1 else f"{record.launches} launches"
        remedy = f" Not stated: {unknown}; --log KEY=VALUE states it." if unknown else ""
        yield f"The times are those of a log, {log}; {count}.{remedy}"


def _emulated(run: Run) -> Iterator[str]:
    for environment in _environments(run) or [run.environment]:
        if testbed := environment.get("emulated"):
            rates = testbed["bytes_per_second"]
            slow = "".join(f", {host} to {bit_rate(8 * rates[host])}" for host in testbed["slow"] if host in rates)
            cpu = testbed.get("slow_cpu") or {}
            slow += "".join(f", processes of {host} to {cores:g} cores" for host, cores in cpu.items())
            if uplink := testbed.get("trunk_bytes_per_second"):
                slow += f", the uplink between two switches to {bit_rate(8 * uplink)}"
            if latency := testbed.get("latency"):
                slow += f", with {1e3 * latency:g} ms from host to host"
            yield (
                f"The nodes are {plural(testbed['hosts'], 'host')} of hpcdl testbed, with links limited to "
                f"{usual_rate(testbed)}{slow}. These hosts share the cores and memory of one machine; hosts of a "
                "cluster do not. Use the results to compare methods, not as times of a cluster."
            )


def _incomplete(run: Run, records: Sequence[Record]) -> Iterator[str]:
    if not run.complete:
        yield "The run is not complete: cases of the suite are missing. Continue it with --resume."
    short: dict[int, list[str]] = {}
    for record in records:
        alive = record.ranks - (record.process_failure or "").count("rank ")
        if 0 < record.ranks_recorded < alive:
            yield (
                f"Only {plural(record.ranks_recorded, 'rank')} left a trace in case {case_name(record)}: its "
                "numbers are those of these ranks only. Repeat the case."
            )
        elif record.measured_steps < 6 and record.launches == 1 and not record.error:
            short.setdefault(record.measured_steps, []).append(case_name(record))
    for steps, names in sorted(short.items()):
        few = f"{'have' if names[1:] else 'has'} only {plural(steps, 'measured step')}, too few for an interval"
        yield f"{plural(len(names), 'case')} {few}. Set more steps. The first is {names[0]}."
    for name, word in {"dropped": "event", "dropped_updates": "update"}.items():
        dropped = int(run.ranks[name].sum())
        if dropped:
            yield (
                f"The trace was full, and {plural(dropped, word)} {'was' if dropped == 1 else 'were'} not kept. "
                "Waiting and staleness use the events before that; step times are complete."
            )


def _oversubscribed(run: Run, records: Sequence[Record]) -> Iterator[str]:
    cores = usable_cores(run.environment)
    if cores is None:
        yield "The cores of the ranks were not recorded: it is unknown whether ranks shared cores."
        return
    worst: dict[int, int] = {}
    for record in records:
        if record.oversubscribed:
            worst[record.ranks] = max(wanted(run, record), worst.get(record.ranks, 0))
    if worst:
        scales = (f"{plural(ranks, 'rank')} need{'s' * (ranks == 1)} {worst[ranks]}" for ranks in sorted(worst))
        yield (
            f"A node has {plural(cores, 'core')}, and {', '.join(scales)}: these cases do not measure scaling. "
            "Start fewer ranks or threads per node."
        )


def _disturbed(records: Sequence[Record]) -> Iterator[str]:
    if disturbed := [record for record in records if record.disturbed]:
        yield (
            f"Other load disturbed {plural(len(disturbed), 'case')}: {'they have' if disturbed[1:] else 'it has'} "
            f"no verdict and no place in rankings. Repeat on an idle machine. The first is "
            f"{case_name(disturbed[0])}: {disturbed[0].disturbed}."
        )
    if left_out := sum(record.launches_left_out for record in records):
        launches = "1 launch" if left_out == 1 else f"{left_out} launches"
        yield (
            f"Other load disturbed {launches}, counted over all cases: the interval of a case uses its other "
            "launches only."
        )
    stolen = [share for record in records if (share := record.stolen) >= NOTED_STEAL]
    if stolen:
        yield (
            f"The hypervisor took up to {100 * max(stolen):.0f} % of a rank's time, so step times may be up to "
            f"{100 * max(stolen):.0f} % too long. Prefer a machine without other guests."
        )


def _unhealthy(records: Sequence[Record]) -> Iterator[str]:
    if throttled := [record for record in records if record.throttled]:
        yield (
            f"Clocks were throttled in {plural(len(throttled), 'case')}: times may be too long. Check cooling and "
            f"power of these nodes. The first is {case_name(throttled[0])}: {throttled[0].throttled}."
        )
    if faulty := [record for record in records if record.hardware_errors]:
        yield (
            f"GPUs had errors in {plural(len(faulty), 'case')}: have these nodes checked. The first is "
            f"{case_name(faulty[0])}: {faulty[0].hardware_errors}."
        )


def _machine(environment: JsonMapping) -> Iterator[str]:
    if not environment:
        yield "The environment was not recorded: machine and software are unknown."
        return
    governor = facts(environment, "cpu").get("governor", UNKNOWN)
    if governor not in {"performance", UNKNOWN}:
        yield f"The frequency governor is {governor!r}: clocks may have changed. Set it to 'performance'."
    libraries = environment.get("libraries")
    active = any("ACTIVE" in str(port.get("state")) for port in facts(environment, "infiniband").values())
    if active and isinstance(libraries, dict) and not (libraries.get("verbs") or libraries.get("shared_memory")):
        yield (
            "InfiniBand is up, but no verbs library was loaded: messages may have gone over TCP. Check the MPI "
            "library's transports."
        )
    git = facts(environment, "git")
    if git.get("changed_files"):
        changed = plural(git["changed_files"], "changed file")
        yield (
            f"hpcdl has {changed} beyond commit {str(git.get('commit'))[:12]}, so that the commit alone does not "
            "repeat this run. Commit them."
        )
    yield from link_counters.warnings(recorded(environment))
    yield from link_counters.idle_nics(environment)
