"""Records put side by side: methods for one problem, each at several scales, each scale with several seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.fields import ANY, TRAININGS, Key, configuration, method, problem
from hpcdl.report.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcdl.analysis.scaling import Record

NEAR_LINEAR: Final = 0.90
"""What the lower bound of the efficiency must reach."""


@dataclass(frozen=True)
class Scale:
    """One method at one number of ranks: one record per seed."""

    records: list[Record]

    def __getitem__(self, name: str) -> Any:
        """A field that does not depend on the seed."""
        return self.records[0].get(name)

    def values(self, name: str) -> list[float]:
        """What is known of a number, one per seed."""
        return [record[name] for record in self.records if record.get(name) is not None]

    def median(self, name: str) -> float | None:
        """Over seeds; None when unknown."""
        values = self.values(name)
        return float(np.median(values)) if values else None

    def low(self, name: str) -> float | None:
        """The smallest over seeds; None when unknown for any."""
        values = self.values(name)
        return min(values) if len(values) == len(self.records) else None

    def high(self, name: str) -> float | None:
        """The largest over seeds; None when unknown for any."""
        values = self.values(name)
        return max(values) if len(values) == len(self.records) else None

    @property
    def is_base(self) -> bool:
        """Whether this is what the others are compared with."""
        return bool(self["ranks"] == self["base_ranks"])

    @property
    def near_linear(self) -> bool | None:
        """Whether the efficiency is at least 0.90, by its interval, the worst over seeds.

        True when all of the interval is, False when none of it is, None when 0.90 is inside or there is none.
        """
        low, high = self.low("efficiency_low"), self.high("efficiency_high")
        if low is None or high is None or low < NEAR_LINEAR <= high:
            return None
        return low >= NEAR_LINEAR


@dataclass(frozen=True)
class Method:
    """One way of solving a problem, at rising numbers of ranks."""

    name: str
    scales: list[Scale]

    @property
    def is_ceiling(self) -> bool:
        """Whether it does not communicate at all."""
        return (self.scales[0]["aggregation"] or "none") == "none"

    @property
    def is_compared(self) -> bool:
        """Whether it ran at any scale beyond the base."""
        return any(not scale.is_base for scale in self.scales)


@dataclass(frozen=True)
class Row:
    """A line of a table about training."""

    name: str
    scale: Scale
    is_ceiling: bool = False
    """Whether its ranks do not communicate although there are several."""
    is_compared: bool = True
    """Whether anything is known of its scaling: a base to which nothing was compared has no efficiency."""
    members: Sequence[Row] = ()
    """The rows that were pooled into it: methods that are the same program on one rank."""


def problems(records: Iterable[Record]) -> list[list[Method]]:
    """Training records by problem, then by method, then by ranks ascending; first come, first shown."""
    found: dict[Key, dict[Key, dict[int, list[Record]]]] = {}
    for record in records:
        if (record.get("kind") or "train") in TRAININGS:
            methods = found.setdefault(problem(record), {})
            methods.setdefault(configuration(record), {}).setdefault(record["ranks"], []).append(record)
    return [
        [
            Method(names(next(iter(scales.values()))[0]), [Scale(scales[ranks]) for ranks in sorted(scales)])
            for scales in methods.values()
        ]
        for methods in found.values()
        for names in [Names(record for scales in methods.values() for same in scales.values() for record in same)]
    ]


def names_of(methods: Sequence[Method]) -> Names:
    """How the methods of one table are told apart."""
    return Names(record for one in methods for scale in one.scales for record in scale.records)


def rows(methods: Sequence[Method]) -> list[Row]:
    """Every method at every scale, but what is the same program on one rank in one row, and first."""
    single: dict[Key, list[Row]] = {}
    others = []
    for one in methods:
        for scale in one.scales:
            row = Row(one.name, scale, one.is_ceiling and scale["ranks"] > 1, one.is_compared)
            if scale["ranks"] == 1:
                single.setdefault(method(scale.records[0]), []).append(row)
            else:
                others.append(row)
    return [*(_pooled(alike, names_of(methods)) for alike in single.values()), *others]


def _pooled(alike: Sequence[Row], names: Names) -> Row:
    if len(alike) == 1:
        return alike[0]
    records = [record for row in alike for record in row.scale.records]
    name = names({**records[0], "aggregation": ANY})
    compared = any(row.is_compared for row in alike)
    return Row(f"1 rank ({name})", Scale(records), is_compared=compared, members=alike)
