"""Compute time by rank and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.launches import warmup_of
from hpcdl.report.charts import Axis, HeatMap
from hpcdl.report.formatting import seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy.typing as npt

    from hpcdl.report.findings import Findings

RANKS: Final = 32
STEPS: Final = 24
"""Most rows and columns; more ranks or steps share one."""
NOTE: Final = (
    "The case whose ranks differ most in their compute time. A cell is the longest compute time of its ranks and "
    "steps. Warm-up steps are left out."
)


def charts(found: Findings) -> list[HeatMap]:
    """Return one chart per problem with several ranks: the case with the lowest load balance."""
    made = []
    for methods in found.problems:
        known = [
            (record["load_balance"], -record["ranks"], number, record)
            for number, record in enumerate(
                record for one in methods for scale in one.scales for record in scale.records
            )
            if record.get("load_balance") is not None and record["ranks"] > 1 and not record.get("network")
        ]
        if known and (chart := _chart(min(known)[-1], found)):
            made.append(chart)
    return made


def _chart(record: Mapping[str, Any], found: Findings) -> HeatMap | None:
    same = ("case", "ranks", "seed")
    places = [
        index
        for index, fields in enumerate(found.run.described)
        if all(fields.get(name) == record.get(name) for name in same)
    ]
    if not places:
        return None
    steps = found.run.steps
    mine = steps[(steps["case_index"] == places[0]) & (steps["step"] >= warmup_of(record))]
    rank, step = mine["rank"].to_numpy(np.int64), mine["step"].to_numpy(np.int64)
    if not len(rank):
        return None
    values, rows, columns = binned(rank, step, mine["compute_ns"].to_numpy(np.float64) * 1e-9)
    return HeatMap(
        f"Compute time by rank and step: {record.get('case')}",
        rows,
        columns,
        "rank",
        "step",
        values,
        Axis("compute time", seconds),
        NOTE,
    )


def binned(
    rank: npt.NDArray[np.int64], step: npt.NDArray[np.int64], value: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], list[str], list[str]]:
    """Return the largest value of each cell and the labels of both axes; :data:`RANKS` x :data:`STEPS` at most."""
    row, rows = _places(rank, RANKS)
    column, columns = _places(step, STEPS)
    found = np.full((len(rows), len(columns)), np.nan)
    np.fmax.at(found, (row, column), value)
    return found, rows, columns


def _places(number: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the bin of each number, and the first and last number of each bin as text."""
    every, place = np.unique(number, return_inverse=True)
    width = -(-len(every) // most)
    parts = [every[begin : begin + width] for begin in range(0, len(every), width)]
    return place // width, [f"{part[0]}" if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
