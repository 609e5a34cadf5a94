"""Records grouped for tables: methods of a problem at several scales with several seeds; settings in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Final

import numpy as np

from hpcdl.analysis.run.record_fields import (
    ANY,
    TRAININGS,
    Key,
    configuration,
    is_independent,
    method,
    planned_steps,
    problem,
)
from hpcdl.analysis.run.record_fields import words as conditions_in_words
from hpcdl.analysis.run.scaling import Record
from hpcdl.report.formats.cells import digits, plural
from hpcdl.report.run.method_names import Names


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
    def fields(self) -> Record:
        """Fields of a record of the smallest scale."""
        return self.scales[0].records[0]

    @property
    def is_ceiling(self) -> bool:
        """True if it does not communicate."""
        return is_independent(self.fields)

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


ABSENT: Final = {
    "straggler": "no straggler",
    "failure": "no failure",
    "shares": "equal shares",
    "simulated": "measured",
    "trace": "trace=events",
}
"""By condition, the words for a case without it if other cases have it."""


@dataclass(frozen=True)
class Settings:
    """The problems of a report."""

    common: str
    """Settings that all problems share."""
    own: Mapping[Key, tuple[str, str]]
    """Name and further settings of each problem. Empty if there is only one."""

    def name(self, fields: Mapping[str, Any]) -> str:
        """Return the model of a problem; where models recur, the simulated network or a letter; empty if alone."""
        return self.own.get(problem(fields), ("", ""))[0]

    def further(self, fields: Mapping[str, Any]) -> str:
        """Return the settings beside the name as a sentence; empty if there is only one problem."""
        _, settings = self.own.get(problem(fields), ("", ""))
        return f"{settings}. " if settings else ""

    def title(self, fields: Mapping[str, Any]) -> str:
        """Return name and further settings; empty if there is only one problem."""
        return ": ".join(filter(None, self.own.get(problem(fields), ())))


def settings(groups: Sequence[Sequence[Method]]) -> Settings:
    """Compare the problems of ``groups`` (of :func:`~hpcdl.report.run.grouping.problems`) word by word."""
    words = {problem(methods[0].fields): _words(methods) for methods in groups}
    every = list(words.values())
    names = list(dict.fromkeys(name for named in every for name in named))
    shared = [name for name in names if len({named.get(name) for named in every}) == 1]
    common = [every[0][name] for name in shared if name != "suite"]
    absent = {name: word for name, word in ABSENT.items() if name in names and name not in shared}
    firsts = [methods[0].fields for methods in groups]
    letters = [*ascii_uppercase, *map(str, range(len(ascii_uppercase) + 1, len(groups) + 1))]
    kinds = [[_network(fields) for fields in firsts], [fields.get("network") or "" for fields in firsts], letters]
    own_names = next(kind for kind in kinds if len(set(kind)) == len(kind) and "" not in kind)
    own = {
        key: (own_name, ", ".join(word for name, word in {**absent, **named}.items() if name not in shared))
        for (key, named), own_name in zip(words.items(), own_names, strict=False)
    }
    return Settings(", ".join(common), own if len(own) > 1 else {})


def _network(fields: Mapping[str, Any]) -> str:
    """Return the network that is trained, and whether it is simulated or replayed."""
    how = "simulated" if fields.get("network") else "replayed" if fields.get("kind") == "replay" else ""
    return " ".join(filter(None, (fields.get("model"), how)))


def _words(methods: Sequence[Method]) -> dict[str, str]:
    """Return by subject each known setting of a problem, and those that all methods share."""
    fields = methods[0].fields
    batch = {
        "strong": f"strong scaling, global batch {fields.get('global_batch')}",
        "weak": f"weak scaling, {_per_rank(fields)} images per rank",
    }.get(fields.get("scaling") or "", "scaling not stated")
    epochs, target = (fields.get(name) for name in ("epochs", "target_accuracy"))
    known = {
        "suite": f"suite {fields.get('suite')}",
        "task": f"{fields.get('model') or 'unnamed model'} on {fields.get('dataset') or 'unnamed data'}",
        "arithmetic": " ".join(str(fields[name]) for name in ("backend", "dtype") if fields.get(name)),
        **names_of(methods).common,
        "threads": plural(fields.get("threads_per_rank"), "thread", " per rank"),
        "batch": batch,
        "length": plural(epochs, "epoch") or plural(_suite_steps(fields), "step"),
        "target": "" if target is None else f"target accuracy {digits(target)}",
        **conditions_in_words(fields),
    }
    return {name: word for name, word in known.items() if word}


def _suite_steps(fields: Mapping[str, Any]) -> int | None:
    """Return the steps that the suite and the case's name state: those of a replay are without warm-up.

    A replay in virtual time takes one step for all of them; None.
    """
    steps = planned_steps(fields)
    if fields.get("kind") != "replay" or steps is None:
        return steps
    return None if fields.get("network") else steps - int(fields.get("warmup_steps") or 0)


def _per_rank(fields: Mapping[str, Any]) -> Any:
    whole = fields.get("global_batch")
    return fields.get("batch_per_rank") or ("equal" if whole is None else whole // fields["ranks"])
