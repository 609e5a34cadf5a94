"""Records grouped for tables: methods of one problem, each at several scales, each scale with several seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.analysis.run.record_fields import ANY, TRAININGS, Key, configuration, is_independent, method, problem
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcdl.analysis.run.scaling import Record


@dataclass(frozen=True)
class Scale:
    """One method at one number of ranks: one record per seed."""

    records: list[Record]

    def __getitem__(self, name: str) -> Any:
        """A field that does not depend on the seed."""
        return self.records[0].get(name)

    def values(self, name: str) -> list[float]:
        """Return the known values of a field, one per seed."""
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
        """True if the other scales are compared with this one."""
        return bool(self["ranks"] == self["base_ranks"])

    @property
    def disturbed(self) -> bool:
        """True if the case or its base was disturbed from outside the job, for any seed."""
        return any(record.get("disturbed") or record.get("base_disturbed") for record in self.records)

    @property
    def near_linear(self) -> bool | None:
        """True: the efficiency is above 0.90 for all seeds; False: below; None: inconclusive or disturbed."""
        verdicts = {record.get("near_linear") for record in self.records}
        return verdicts.pop() if len(verdicts) == 1 and not self.disturbed else None

    @property
    def is_one_launch(self) -> bool:
        """True if a measured case or its base has one launch, which decides nothing."""
        return any(
            not record.get("network") and 1 in {record.get("launches"), record.get("base_launches")}
            for record in self.records
        )


@dataclass(frozen=True)
class Method:
    """One way of solving a problem, at rising numbers of ranks."""

    name: str
    scales: list[Scale]

    @property
    def is_ceiling(self) -> bool:
        """True if it does not communicate."""
        return is_independent(self.scales[0].records[0])

    @property
    def is_compared(self) -> bool:
        """True if it ran at any scale beyond the base."""
        return any(not scale.is_base for scale in self.scales)


@dataclass(frozen=True)
class Row:
    """A line of a table about training."""

    name: str
    scale: Scale
    is_ceiling: bool = False
    """True if its ranks do not communicate although they are several."""
    is_compared: bool = True
    """True if it has an efficiency: a base without other scales has none."""
    members: Sequence[Row] = ()
    """The rows that were pooled into it: methods that are the same program on one rank."""

    @property
    def step_seconds(self) -> float | None:
        """Median step; of pooled methods that are the base of others, the base's."""
        pooled = self.scale.median("base_step_seconds") if self.members and self.scale.is_base else None
        return self.scale.median("step_seconds") if pooled is None else pooled


def problems(records: Iterable[Record]) -> list[list[Method]]:
    """Training records by problem, then by method, then by ranks ascending; first come, first shown."""
    groups: dict[Key, dict[Key, dict[int, list[Record]]]] = {}
    for record in records:
        if (record.get("kind") or "train") in TRAININGS:
            methods = groups.setdefault(problem(record), {})
            methods.setdefault(configuration(record), {}).setdefault(record["ranks"], []).append(record)
    return [
        [
            Method(names(next(iter(scales.values()))[0]), [Scale(scales[ranks]) for ranks in sorted(scales)])
            for scales in methods.values()
        ]
        for methods in groups.values()
        for names in [Names(record for scales in methods.values() for same in scales.values() for record in same)]
    ]


def names_of(methods: Sequence[Method]) -> Names:
    """Return the names of the methods of one table."""
    return Names(record for method in methods for scale in method.scales for record in scale.records)


def rows(methods: Sequence[Method]) -> list[Row]:
    """Return a row per method and scale; methods that are one program on one rank share a row, the first."""
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
