"""What a reader must know before believing a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.analysis.launches import warmup_of
from hpcdl.report.quantities import plural, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.trace.run import Run

UNKNOWN = "unknown"

STALL = 100
"""Times the median beyond which a step is no step like the others, """
STALL_SECONDS = 1.0
"""if it lasts so long at all."""

CEILING = 0.05
"""Share of a step by which one that communicates may be faster than one that does not, of chance."""


def failures(records: Sequence[Record]) -> list[str]:
    """Cases that broke or whose result was wrong."""
    return [
        f"case {_name(record)}: {record.get('error') or 'wrong result'}"
        for record in records
        if record.get("error") or record.get("correct") is False
    ]


def deaths(run: Run) -> list[str]:
    """Of each case in which a rank was to die: who died, before which of its steps, or that nobody did."""
    doomed = [fields for fields in run.described if fields.get("failure")]
    return list(
        dict.fromkeys(
            f"case {_name(fields)}: {fields['died']} died, and the others went on."
            if fields.get("died")
            else f"case {_name(fields)}: nobody died; {fields['failure']} was to."
            for fields in doomed
        )
    )


def warnings(run: Run, records: Sequence[Record]) -> list[str]:
    """Everything that makes the numbers doubtful, worst first."""
    measured = [record for record in records if not record.get("network")]  # the others are simulated
    return [
        *_emulated(run.environment),
        *_incomplete(run, measured),
        *_oversubscribed(run, measured),
        *_stalls(run),
        *_above_the_ceiling(measured),
        *(_machine(run.environment) if measured or not records else ()),
    ]


def _name(record: Mapping[str, Any]) -> str:
    seed = "" if record["seed"] is None else f", seed {record['seed']}"
    return f"{record['case'] or record['aggregation']} ({record['ranks']} ranks{seed})"


def _emulated(environment: Mapping[str, Any]) -> Iterator[str]:
    """A testbed's hosts look like nodes in all else that is recorded."""
    testbed = environment.get("emulated")
    if testbed:
        slow = "".join(f", {host} to {rate}" for host, rate in testbed["slow"].items())
        yield (
            f"EMULATED: the nodes are {plural(testbed['hosts'], 'host')} of hpcdl testbed on one machine, links "
            f"limited to {testbed['rate']}{slow}. They share its cores and memory; this is no cluster."
        )


def _incomplete(run: Run, records: Sequence[Record]) -> Iterator[str]:
    if not run.complete:
        yield "the run is not complete: cases of the suite are missing."
    for record in records:
        living = record["ranks"] - bool(record.get("died"))
        if 0 < record["ranks_recorded"] < living:
            yield f"case {_name(record)}: only {plural(record['ranks_recorded'], 'rank')} left a trace."
        elif record["measured_steps"] < 6 and not record.get("error"):
            steps = plural(record["measured_steps"], "measured step")
            yield f"case {_name(record)}: {steps}, too few for an interval."
    spoilt = {
        "dropped": ("event", "steps and updates are all there"),
        "dropped_updates": ("update", "staleness is that of the first ones; steps and accuracy are all there"),
    }
    for name, (word, rest) in spoilt.items():
        dropped = int(run.ranks[name].sum()) if name in run.ranks else 0
        if dropped:
            yield f"{plural(dropped, word)} dropped at the limit: {rest}."


def _oversubscribed(run: Run, records: Sequence[Record]) -> Iterator[str]:
    """Ranks x threads against the cores that the ranks of the fullest node may use."""
    cores = usable_cores(run.environment)
    if cores is None:
        yield "cores available to the ranks are unknown: oversubscription was not checked."
        return
    worst = crowded(run, records)
    if worst:
        scales = ", ".join(f"{ranks} ranks want {wanted}" for ranks, wanted in sorted(worst.items()))
        yield f"OVERSUBSCRIBED: {cores:g} cores per node; {scales}. These cases do not measure scaling."


def crowded(run: Run, records: Sequence[Record]) -> dict[int, int]:
    """Numbers of ranks that share cores, to the cores that they want of the fullest node."""
    cores = usable_cores(run.environment)
    worst: dict[int, int] = {}
    for record in records:
        if cores is None or record.get("network") or record.get("kind") == "replay":
            continue  # simulated, or asleep where others compute
        machines = 1 if run.environment.get("emulated") else record["nodes"] or 1
        per_node = -(-record["ranks"] // machines)
        threads = record["threads_per_rank"]
        wanted = per_node * (threads if isinstance(threads, int) else 1)
        if wanted > cores:
            worst[record["ranks"]] = max(wanted, worst.get(record["ranks"], 0))
    return worst


def _stalls(run: Run) -> Iterator[str]:
    """Steps that took so much longer than their like that something else must have had the machine."""
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
    """Training that exchanges something cannot be faster than the same without."""
    faster: dict[int, int] = {}
    for record in records:
        high, step = record.get("exposed_communication_seconds_high"), record.get("step_seconds")
        if high is not None and step and high < -CEILING * step:
            faster[record["ranks"]] = faster.get(record["ranks"], 0) + 1
    for ranks, cases in faster.items():
        yield (
            f"on {ranks} ranks {plural(cases, 'case')} took less time than training without communication: they "
            "were not measured under like conditions. Repeat the run, with --launches if it stays so."
        )


def usable_cores(environment: Mapping[str, Any]) -> float | None:
    """Cores on the poorest node: those in its ranks' affinities, at most the physical ones and the quota."""
    cpu = environment.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    limits = [float(cpu[name]) for name in ("physical_cores", "quota_cores") if cpu.get(name, UNKNOWN) != UNKNOWN]
    nodes: dict[str, set[int]] = {}
    for rank in environment.get("ranks") or []:
        node = rank["slurm_node"] if rank.get("slurm_node", UNKNOWN) != UNKNOWN else rank.get("hostname")
        nodes.setdefault(str(node), set()).update(_numbers(rank.get("affinity", "")))
    limits += [float(len(cores)) for cores in nodes.values() if cores]
    return min(limits, default=None)


def _numbers(ranges: str) -> Iterator[int]:
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _machine(environment: Mapping[str, Any]) -> Iterator[str]:
    if not environment:
        yield "the environment was not recorded."
        return
    cpu = environment.get("cpu")
    governor = cpu.get("governor", UNKNOWN) if isinstance(cpu, dict) else UNKNOWN
    if governor == UNKNOWN:
        yield "the frequency governor is unknown: clocks may have changed while measuring."
    elif governor != "performance":
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
