"""Part of a case's trace: some ranks and some steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd

    from hpcdl.trace.run import Run


@dataclass(frozen=True)
class Selection:
    """Events and steps of one case, times in ns from the first of them."""

    name: str
    events: pd.DataFrame
    """rank, task, label, begin, end, peer, bytes."""
    steps: pd.DataFrame
    """rank, step, begin, end."""
    dropped: int
    """Events that the recorder had no room for."""


def select(
    run: Run, case_index: int, ranks: Collection[int] | None = None, steps: Collection[int] | None = None
) -> Selection:
    """Return the events of ``ranks`` from the begin of the first of ``steps`` to the end of the last one.

    None selects all ranks, or all events, also those outside steps. Raises ValueError if there are no such ranks
    or steps, and TraceError for a damaged file.
    """
    name = str(run.described[case_index].get("case", ""))
    events = run.events_of(case_index)
    rows = run.steps[run.steps["case_index"] == case_index]
    recorders = run.ranks[run.ranks["case_index"] == case_index]
    if ranks is not None:
        if absent := sorted(set(ranks) - set(recorders["rank"])):
            raise ValueError(f"{name} has no rank {absent[0]}")
        events, rows = events[events["rank"].isin(ranks)], rows[rows["rank"].isin(ranks)]
    if steps is not None:
        if absent := sorted(set(steps) - set(rows["step"])):
            raise ValueError(f"{name} has no step {absent[0]}")
        rows = rows[rows["step"].isin(steps)]
        window = rows.groupby("rank").agg(begin=("begin", "min"), end=("end", "max"))
        begin, end = (events["rank"].map(window[column]) for column in ("begin", "end"))
        events = events[(events["begin"] >= begin) & (events["end"] <= end)]
    if events.empty:
        raise ValueError(f"{name} has no recorded events of these ranks and steps")
    start = min(events["begin"].min(), rows["begin"].min() if len(rows) else events["begin"].min())
    shift = {"begin": lambda frame: frame["begin"] - start, "end": lambda frame: frame["end"] - start}
    return Selection(name, events.assign(**shift), rows.assign(**shift), int(recorders["dropped"].sum()))
