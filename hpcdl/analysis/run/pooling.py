"""Launches of one suite, pooled into one run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hpcdl.analysis.run.launches import Launch, undisturbed
from hpcdl.analysis.run.record import Key, Record, group_by_key
from hpcdl.analysis.statistics.differences import Vector
from hpcdl.analysis.statistics.estimates import Middle
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.trace.link_counters import recorded, total
from hpcdl.trace.log import Facts
from hpcdl.trace.run import RecordedCase, Run


def runs_in(path: Path) -> list[Path]:
    """Return the runs that ``path`` names: itself, or in their order those that ``--launches`` left in it.

    A launch that has ended without a finished case is not among them, unless all have.
    """
    runs = _launches(path)
    return [run for run in runs if _has_cases(run)] or runs or [path]


def ended_early(path: Path) -> list[Path]:
    """Return the launches in ``path`` that have no finished case."""
    return [run for run in _launches(path) if not _has_cases(run)]


def _launches(path: Path) -> list[Path]:
    if not path.is_dir() or any((path / name).exists() for name in ("run.h5", "parts")):
        return []
    folders = [entry for entry in path.iterdir() if re.fullmatch(r"launch-[0-9]{1,9}", entry.name)]
    return sorted(folders, key=lambda folder: int(folder.name[7:]))


def _has_cases(run: Path) -> bool:
    return (run / "run.h5").exists() or any((run / "parts").glob("*.h5"))


class Copies:
    """Cases of runs that were read before, in any form: they count once, and the first such run is named."""

    def __init__(self) -> None:
        """Know no run."""
        self._copies: list[tuple[str, str]] = []
        self._first: dict[str, tuple[int, str]] = {}
        self._runs = 0

    def new(self, name: object, identities: Sequence[str]) -> list[int]:
        """Return the indices of the cases of a run that no run before has."""
        self._runs += 1
        origins = [self._first.setdefault(identity, (self._runs, str(name))) for identity in identities]
        copies = {run: origin for run, origin in origins if run != self._runs}
        number = sum(run != self._runs for run, _ in origins)
        if copies:
            part = "" if number == len(identities) else f": {number} of its {len(identities)} cases"
            verb = "are" if part and number > 1 else "is"
            self._copies.append((f"{name} is a copy of {', '.join(copies.values())}{part}", verb))
        return [index for index, (run, _) in enumerate(origins) if run == self._runs]

    @property
    def lines(self) -> list[str]:
        """A line with the number of copies, and the first one; none without copies."""
        if len(self._copies) < 2:
            return [f"{line}, and {verb} left out" for line, verb in self._copies]
        first, _ = self._copies[0]
        return [f"{len(self._copies)} runs repeat cases of others, which are left out; the first: {first}"]


def launches_in(run: Run) -> list[Run]:
    """Return the launches that a run of pooled launches has; the run itself if it has one."""
    launches = group_by_key((fields.get("launch"), index) for index, fields in enumerate(run.described))
    return [run] if len(launches) < 2 else [run.only(indices) for indices in launches.values()]


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without cases that a run before has; the first one names the copies."""
    copies, kept = Copies(), []
    for run in runs:
        indices = copies.new(run.path, run.identities)
        if len(indices) == len(run.described):
            kept.append(run)
        elif indices:
            kept.append(run.only(indices))
    return [replace(run, copies=[*run.copies, *copies.lines]) if run is kept[0] else run for run in kept]


def read_pooled(paths: Iterable[Path], facts: Facts = ()) -> Run:
    """Read the runs that ``paths`` name; pool them if they are several. Raises TraceError, and as :func:`pool`."""
    from hpcdl.trace.schema import predictions_in, read  # late: h5py is not needed to pool runs

    runs = [read(run, facts=facts) for path in paths for run in runs_in(path)]
    runs = distinct(runs) if len(runs) > 1 else runs
    launches = [launch for run in runs for launch in launches_in(run)]
    if len(runs) == 1:
        return without_repetitions(with_seeds_of_launches(runs[0]))
    pooled = pool(launches)
    return without_repetitions(with_seeds_of_launches(replace(pooled, predictions=predictions_in(pooled.path))))


def with_seeds_of_launches(run: Run) -> Run:
    """Return the run without the seeds of measured cases whose launches differ in the seed alone.

    Each launch has its own then: it draws other images and initial parameters, which its times do not depend on.
    """
    measured = [index for index, fields in enumerate(run.described) if not fields.get("network")]
    of_case = group_by_key((run.described[index].get("case"), index) for index in measured)
    cases = list(run.recorded)
    for indices in of_case.values():
        every = [cases[index].fields for index in indices]
        numbers = [len({fields.get(name) for fields in every}) for name in ("launch", "seed")]
        if numbers != [len(every)] * 2 or len(every) < 2:
            continue  # one launch, or the same seed in each
        settings = [{**Record.of(fields).settings, "seed": None} for fields in every]
        if all(each == settings[0] for each in settings):
            same = {"seed": None, **{name: every[0].get(name) for name in ("digest", "settings")}}
            for index in indices:
                cases[index] = replace(cases[index], fields={**cases[index].fields, **same})
    return replace(run, recorded=cases)


def without_repetitions(run: Run) -> Run:
    """Return the run without simulated cases that repeat those of an earlier launch: together they are one launch.

    Their times are equal, as long as the draw of random compute times and pauses is, which their record states.
    The environment has the number of those left out that draw any, as ``repeated_draws``.
    """
    first: dict[object, object] = {}
    cases: list[RecordedCase] = []
    drawn = 0
    for case in run.recorded:
        fields = case.fields
        identity = (fields.get("digest"), fields.get("draw"), fields.get("error"))
        is_known = bool(fields.get("network") and fields.get("digest"))
        if is_known and first.setdefault(identity, fields.get("launch")) != fields.get("launch"):
            drawn += fields.get("draw") is not None
        else:
            cases.append(case)
    environment = {**run.environment, **({"repeated_draws": drawn} if drawn else {})}
    return replace(run, recorded=cases, environment=environment) if len(cases) < len(run.recorded) else run


def pool(runs: Sequence[Run]) -> Run:
    """Return one run with all launches, in their order; its environment and its path are those of the first one.

    If ``--launches`` made them, its path is that of their folder. Launches may have run on other nodes, or on
    another number of nodes. Raises ValueError for runs of different suites or machines.
    """
    first, *others = runs
    for run in others:
        if run.suite != first.suite:
            raise ValueError(f"{run.path} is no launch of what {first.path} is: the suites differ")
        # A median over two machines would be the time of neither.
        if _machines(run) != _machines(first):
            raise ValueError(f"{run.path} is no launch of what {first.path} is: the machines or libraries differ")
    cases: list[RecordedCase] = []
    environments: dict[str, JsonObject] = {}
    for number, run in enumerate(runs, 1):
        names = {}
        for key, env in run.environments.items():  # launches on other hosts keep their own
            on_same_hosts = env.get("ranks") == environments.setdefault(key, env).get("ranks")
            names[key] = key if on_same_hosts else f"{key}, launch {number}"
            environments.setdefault(names[key], env)
        for case in run.recorded:
            name = names.get(str(case.fields.get("environment_key")))
            renamed = {"environment_key": name} if name else {}
            cases.append(replace(case, fields={**case.fields, "launch": number, **renamed}))
    files = {id(run.environment): run.environment for run in runs}  # launches of one file have one
    folders = {run.path.parent for run in runs}
    made_as_one = len(folders) == 1 and all(run.path.name.startswith("launch-") for run in runs)
    return replace(
        first,
        path=first.path.parent if made_as_one else first.path,
        recorded=cases,
        environment={
            **first.environment,
            **{name: _all(runs, name) for name in ("failed_cases", "cases_not_run")},
            "link_counters": total(map(recorded, files.values())),
        },
        environments=environments,
        complete=all(run.complete for run in runs),
        copies=[line for run in runs for line in run.copies],
    )


def _machines(run: Run) -> set[str]:
    return {machine_key(env) for env in run.environments.values()}


def machine_key(environment: JsonMapping) -> str:
    """Return the key of a machine and its software, on any number of nodes."""
    return str(environment.get("machine_key", environment.get("key")))


def _all(runs: Sequence[Run], name: str) -> list[object]:
    """Return the lists that the runs' environments have under ``name`` as one, each entry once."""
    parts: list[object] = []
    for run in runs:
        parts += [part for part in run.environment.get(name) or [] if part not in parts]
    return parts


class AmbiguousCaseError(Exception):
    """Two cases that nothing tells apart; pooling them would be a silent mistake."""


@dataclass(frozen=True, eq=False)
class Point:
    """The launches of one configuration at one scale with one seed; it becomes one record."""

    launches: list[Launch]

    @property
    def record(self) -> Record:
        """The case as its first launch describes it."""
        return self.launches[0].record

    @cached_property
    def configuration(self) -> Key:
        """Return the configuration of the case."""
        return self.record.configuration()

    @cached_property
    def problem(self) -> Key:
        """Return the problem of the case."""
        return self.record.problem()

    @cached_property
    def timed(self) -> list[Launch]:
        """Launches whose times count: the undisturbed ones; all if all are disturbed."""
        return undisturbed(self.launches)

    @property
    def key(self) -> Key:
        """Configuration, ranks and seed."""
        return (self.configuration, self.record.ranks, self.record.seed)

    @cached_property
    def times(self) -> list[float]:
        """Typical step time (s) of each launch whose times count."""
        return [launch.typical(launch.seconds) for launch in self.timed if len(launch.seconds)]

    @property
    def seconds(self) -> list[Vector]:
        """Step times, one vector per launch whose times count."""
        return [launch.seconds for launch in self.timed]

    @property
    def middle(self) -> Middle:
        """Statistic of the step times."""
        return self.launches[0].middle


def points_of(launches: Iterable[Launch]) -> list[Point]:
    """Group launches by configuration, ranks and seed. Raises AmbiguousCaseError."""
    points: dict[Key, list[Launch]] = {}
    for launch in launches:
        record = launch.record
        together = points.setdefault((record.configuration(), record.ranks, record.seed), [])
        for other in together:
            # One launch runs a case once: two with one key differ in something that no key tells.
            if other.record.launch == record.launch:
                raise AmbiguousCaseError(
                    f"cases {other.record.case!r} and {record.case!r} (launch "
                    f"{record.launch}) differ in nothing the analysis knows; "
                    "what tells them apart belongs in the field 'settings'"
                )
        together.append(launch)
    return [Point(together) for together in points.values()]
