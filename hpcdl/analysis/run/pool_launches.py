"""Several runs of one suite pooled: each is a launch of the same cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from hpcdl.trace.run import Run, Table


def pool(runs: Sequence[Run]) -> Run:
    """One run with all launches, in their order; it has the first one's environment, and its path.

    Of what ``--launches`` made, the path is that of the folder which holds them all.

    Raises ValueError for runs of different suites or machines, which are no repetitions.
    """
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

    folders = {run.path.parent for run in runs}
    made_as_one = len(folders) == 1 and all(run.path.name.startswith("launch-") for run in runs)
    return replace(
        first,
        path=first.path.parent if made_as_one else first.path,
        cases=_joined([run.cases.assign(launch=number) for number, run in enumerate(runs, 1)], None),
        steps=_joined([run.steps for run in runs], begins),
        evaluations=_joined([run.evaluations for run in runs], begins),
        updates=_joined([run.updates for run in runs], begins),
        residuals=_joined([run.residuals for run in runs], begins),
        ranks=_joined([run.ranks for run in runs], begins),
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
    found: list[object] = []
    for run in runs:
        found += [one for one in run.environment.get(name) or [] if one not in found]
    return found


def _joined(frames: Sequence[pd.DataFrame], begins: Sequence[int] | None) -> pd.DataFrame:
    import pandas as pd

    moved = [
        frame if begins is None else frame.assign(case_index=frame["case_index"] + begin)
        for frame, begin in zip(frames, begins or [0] * len(frames), strict=False)
    ]
    return pd.concat(moved, ignore_index=True)
