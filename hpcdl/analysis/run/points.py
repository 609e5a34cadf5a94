"""Launches grouped into the points that become records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from hpcdl.analysis.run.launches import REDUCED, undisturbed
from hpcdl.analysis.run.record_fields import TRAININGS, Key, configuration, problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

    from hpcdl.analysis.run.launches import Launch
    from hpcdl.analysis.statistics.estimates import Middle, Vector
    from hpcdl.trace.run import Run, Table


def pool(runs: Sequence[Run]) -> Run:
    """One run with all launches, in their order; it has the first one's environment, and its path.

    Of what ``--launches`` made, the path is that of the folder which holds them all.

    Raises ValueError for runs of different suites or machines, which are no repetitions.
    """
    import pandas as pd

    first, *others = runs
    for run in others:
        if run.suite != first.suite:
            raise ValueError(f"{run.path} is no launch of what {first.path} is: the suites differ")
        if run.environments.keys() != first.environments.keys():
            raise ValueError(f"{run.path} is no launch of what {first.path} is: the machines or libraries differ")
    begins = [0, *accumulate(len(run.described) for run in runs)]
    described = [{**fields, "launch": number} for number, run in enumerate(runs, 1) for fields in run.described]

    def load(index: int) -> tuple[Table, list[str]]:
        number = next(i for i, begin in reversed(list(enumerate(begins))) if begin <= index)
        return runs[number]._load(index - begins[number])  # noqa: SLF001 - another run's, to be read as this one's

    tables: dict[str, Any] = {name: _joined([getattr(run, name) for run in runs], begins) for name in REDUCED}
    folders = {run.path.parent for run in runs}
    made_as_one = len(folders) == 1 and all(run.path.name.startswith("launch-") for run in runs)
    return replace(
        first,
        path=first.path.parent if made_as_one else first.path,
        cases=pd.concat(
            [run.cases.assign(launch=number) for number, run in enumerate(runs, 1)], ignore_index=True
        ),
        **tables,
        environment={
            **first.environment,
            **{name: _all(runs, name) for name in ("failed_cases", "cases_not_run")},
        },
        environments={key: env for run in reversed(runs) for key, env in run.environments.items()},
        complete=all(run.complete for run in runs),
        described=described,
        _load=load,
    )


def _all(runs: Sequence[Run], name: str) -> list[object]:
    """Return the lists that the runs' environments have under ``name`` as one, each entry once."""
    parts: list[object] = []
    for run in runs:
        parts += [part for part in run.environment.get(name) or [] if part not in parts]
    return parts


def _joined(frames: Sequence[pd.DataFrame], begins: Sequence[int]) -> pd.DataFrame:
    """Return the frames as one, with the case numbers of each after those of the frames before."""
    import pandas as pd

    moved = [
        frame.assign(case_index=frame["case_index"] + begin) for frame, begin in zip(frames, begins, strict=False)
    ]
    return pd.concat(moved, ignore_index=True)


class AmbiguousCaseError(Exception):
    """Two cases that nothing tells apart; pooling them would be a silent mistake."""


@dataclass(frozen=True)
class Point:
    """The launches of one configuration at one scale with one seed; it becomes one record."""

    key: Key
    problem: Key
    aggregation: str
    ranks: int
    seed: Any
    launches: list[Launch]

    @property
    def fields(self) -> Mapping[str, Any]:
        """Fields of the case."""
        return self.launches[0].fields

    @property
    def timed(self) -> list[Launch]:
        """Launches whose times count: the undisturbed ones; all if all are disturbed."""
        return undisturbed(self.launches)

    @property
    def seconds(self) -> list[Vector]:
        """Step times, one vector per launch whose times count."""
        return [launch.seconds for launch in self.timed]

    @property
    def middle(self) -> Middle:
        """Statistic of the step times."""
        return self.launches[0].middle

    @property
    def is_training(self) -> bool:
        """True if its steps are those of a training, measured or replayed."""
        return self.fields.get("kind", "train") in TRAININGS


def points_of(launches: Iterable[Launch]) -> list[Point]:
    """Group launches by configuration, ranks and seed. Raises AmbiguousCaseError."""
    points: dict[Key, Point] = {}
    for launch in launches:
        fields = launch.fields
        key, ranks, seed = configuration(fields), int(fields.get("ranks") or 1), fields.get("seed")
        empty = Point(key, problem(fields), str(fields.get("aggregation") or "none"), ranks, seed, [])
        point = points.setdefault((key, ranks, seed), empty)
        for other in point.launches:
            if other.fields.get("launch") == fields.get("launch"):
                raise AmbiguousCaseError(
                    f"cases {other.fields.get('case')!r} and {fields.get('case')!r} (launch "
                    f"{fields.get('launch')}) differ in nothing the analysis knows; "
                    "what tells them apart belongs in the field 'settings'"
                )
        point.launches.append(launch)
    return list(points.values())
