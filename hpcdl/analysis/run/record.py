"""Record of a case: the values of its quantities (:mod:`hpcdl.trace.quantities`).

A trace describes a case by fields, which :meth:`Record.of` reads. The analysis adds the measured numbers, and
sections ask attributes. What tells cases apart follows from the roles of their keys
(:data:`hpcdl.cases.keys.key.Role`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from statistics import median
from typing import Any, Final, Literal, TypeVar

from hpcdl.analysis.statistics.judging import SAME, Judged, Side, judge
from hpcdl.cases.keys.key import Role, restored
from hpcdl.cases.keys.step_spec import StepSpec
from hpcdl.cases.keys.suite_tables import columns_with, kinds, module_of, role_of
from hpcdl.registry import label, parts
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.trace.quantities import (
    COLUMNS,
    QUANTITIES,
    CommonNumbers,
    Description,
    OperationNumbers,
    Origin,
    TrainingNumbers,
    Unreported,
)
from hpcdl.trace.quantity import Quantity
from hpcdl.training.parts.traits import BY_STRATEGY

ANY: Final = "any"
"""In the place of an aggregation: it makes no difference."""

Key = tuple[object, ...]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Mark = Literal[
    "simulated",
    "emulated",
    "oversubscribed",
    "disturbed",
    "throttled",
    "diverged",
    "extrapolated",
    "undetermined",
]
"""Reservation that travels with a number."""
FAR: Final = 4
"""Ranks of a prediction by the most that were measured, from which on it is extrapolated."""


class Record(Description, Origin, TrainingNumbers, OperationNumbers, CommonNumbers, Unreported):
    """One case: the values of the quantities that are known; None: unknown, or it does not apply."""

    def __init__(self, *, further: JsonMapping | None = None, **values: Any) -> None:
        unknown = values.keys() - QUANTITIES.keys()
        if unknown:
            raise TypeError(f"a record has no quantity {', '.join(sorted(unknown))}")
        self.values: dict[str, Any] = values
        self.further: JsonMapping = further or {}
        """Fields of a user's own kind of case, or of another program."""
        self.samples: Mapping[int | None, Record] = {}
        """The numbers of each launch by itself, if there are several."""

    def but(self, **changes: Any) -> Record:
        """Return a copy with other values of some quantities."""
        copy = Record(further=self.further, **{**self.values, **changes})
        copy.samples = self.samples
        return copy

    @classmethod
    def of(cls, described: JsonMapping) -> Record:
        """Return the record of a case that a trace or a suite describes by fields."""
        values = {name: value for name, value in described.items() if name in QUANTITIES and value is not None}
        further = {name: value for name, value in described.items() if name not in QUANTITIES}
        values["settings"] = _parsed(str(values.get("settings") or "{}"))
        if described.get("warmup_steps") is None and values.get("kind", "train") == "train":
            values["warmup_steps"] = 2  # first touch of memory, first connection of peers
        record = cls(further=further, **values)
        if record.scaling is None and (record.batch_per_rank or record.global_batch) is not None:
            record.scaling = "strong" if record.batch_per_rank is None else "weak"
        if record.epochs is None and record.planned_steps is None:  # fewer are taken if it stops at its target
            record.planned_steps = record.steps
        return record

    @property
    def row(self) -> JsonObject:
        """The columns by name, in their order."""
        return {**{name: quantity.of(self) for name, quantity in COLUMNS.items()}, **self.further}

    @cached_property
    def spec(self) -> Any:
        """The case's keys. Raises ValueError for a kind or a key that this version does not know."""
        return _restored(self.kind, json.dumps(dict(self.settings)))

    @property
    def described(self) -> Record:
        """The case without measured numbers and without its scale: problem, method and settings."""
        names = ("suite", "case", "kind", "scaling", *columns_with("problem"), *columns_with("method"))
        return Record(**{name: self.values[name] for name in (*names, "settings") if name in self.values})

    @property
    def is_training(self) -> bool:
        """True if its steps are those of a training, measured or replayed."""
        return self.kind in kinds() and issubclass(module_of(self.kind).SPEC, StepSpec)

    @property
    def is_exact(self) -> bool:
        """True if its times are simulated, and none of them is random."""
        return bool(self.network) and not self.jitter and not 0 < (self.straggler_pause_share or 0) < 1

    @property
    def keeps_step(self) -> bool:
        """True if ranks take every step together, so that the slowest of them determines its time.

        The time per step of other strategies takes many steps: see :mod:`hpcdl.analysis.run.launches`.
        """
        return self.lockstep is not False

    @property
    def marks(self) -> list[Mark]:
        """Reservations about the numbers: how they came about, and what spoils them."""
        known: dict[Mark, bool] = {
            "simulated": bool(self.network),
            "emulated": bool(self.emulated),
            "oversubscribed": bool(self.oversubscribed),
            "disturbed": bool(self.disturbed),
            "throttled": bool(self.throttled),
            "diverged": self.diverged_step is not None,
            "extrapolated": (self.times_the_measured_ranks or 0) > FAR,
            "undetermined": bool(self.undetermined),
        }
        return [mark for mark, holds in known.items() if holds]

    @property
    def strategy(self) -> str:
        """The name of the strategy, without its settings; empty where there is none."""
        return parts(self.training or "")[0]

    @property
    def batch(self) -> float | None:
        """Images of a global batch; None if unknown."""
        if self.global_batch is not None:
            return float(self.global_batch)
        return None if self.batch_per_rank is None else float(self.batch_per_rank) * self.ranks

    @property
    def period(self) -> int | None:
        """Steps between two exchanges; None for a strategy or a key that this version does not know."""
        try:
            return int(self.spec.strategy.cycle(self.spec.training.in_full))
        except ValueError:
            return None

    def stated(self, column: str) -> Any:
        """Return the value of a column; of a key without a column its setting, as text."""
        if column in QUANTITIES:
            return QUANTITIES[column].of(self)
        return label(self.settings[column]) if column in self.settings else None

    def problem(self, *ignored: str) -> Key:
        """Return the key of the table to which the case belongs: it is equal for all methods at all scales.

        It contains the global batch (strong) or the batch per rank (weak), and the steps unless the suite gives
        epochs. ``ignored``: conditions that may differ.
        """
        batch = {"strong": self.global_batch, "weak": self.batch_per_rank}.get(self.scaling or "")
        return (
            self.suite,
            self.kind,
            tuple(map(self.stated, columns_with("problem"))),
            self.scaling,
            batch,
            self.conditions(*ignored),
        )

    @property
    def method(self) -> Key:
        """The method: strategy, parallelism, aggregation, compression, optimizer, schedule and rate.

        One rank exchanges nothing, so that every aggregation is the same program there; a compressor may still
        cost time and lose digits.
        """
        alone = self.ranks == 1 and self.aggregation != BY_STRATEGY
        return tuple(
            ANY if alone and name == "aggregation" else self.stated(name) or "none"
            for name in columns_with("method")
        )

    def configuration(self, *ignored: str) -> Key:
        """Return everything but ranks, nodes, seed and launch, and the settings that are ``ignored``.

        Cases whose keys differ are apart, although a column may state a key's consequence, and not the key.
        """
        method = tuple(self.stated(name) or "none" for name in columns_with("method"))
        return (self.problem(*ignored), method, self._given({"problem", "method", "sampling"}, ignored))

    def conditions(self, *ignored: str) -> tuple[tuple[str, str], ...]:
        """Return key and value of each given setting that changes the measured numbers and is in no column."""
        return self._given({"condition", "machine"}, ignored)

    def _given(self, roles: Collection[Role], ignored: Collection[str]) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, label(value))
            for name, value in sorted(self.settings.items())
            if name not in ignored and role_of(name) in roles
        )

    @property
    def words(self) -> dict[str, str]:
        """The conditions in words, by subject."""
        given, subjects = self.settings, {"log": self.log.partition(": ")[0]} if self.log else dict[str, str]()
        if self.network:
            ranks = given.get("ranks_per_host", 1)
            words = [f"simulated on {self.network}", f"{ranks} rank{'s' * (ranks != 1)} per node", _times(given)]
            words[1:1] = [label(given["topology"])] if given.get("topology") else []
            words += [f"jitter {_number(given['jitter'])}"] if given.get("jitter") else []
            subjects["simulated"] = ", ".join(filter(None, words))
        elif times := _times(given):
            scale = f" x {_number(given['time_scale'])}" if "time_scale" in given else ""
            subjects["replayed"] = f"replayed with {times}{scale}"
        for name, text in (("shares", self.shares), ("straggler", self.straggler), ("failure", self.failure)):
            if text:
                subjects[name] = text if name == "straggler" else f"{name} {text}"
        others = self.conditions(*columns_with("machine"), *subjects)
        return subjects | {name: f"{name}={value}".rstrip("=") for name, value in others}


def side(records: Sequence[Record], quantity: Quantity[Any]) -> Side:
    """Return the records of one method, one for each seed, as a side of a comparison.

    Numbers that depend on the seed are known by seed; of one that diverged or missed its target the number is
    infinitely bad. Others are known as :func:`by_units` has them. Bytes, counts and simulated times without random
    parts are exact if all seeds have the same.
    """
    sound = [record for record in records if not record.error]
    by_seed = {record.seed: quantity.of(record) for record in sound}
    of_target = quantity.name.endswith("_to_target")
    if quantity.seeded or of_target:
        worst = -math.inf if quantity.better == "higher" else math.inf
        lost = [record for record in sound if record.diverged_step is not None and quantity.better]
        lost += [record for record in sound if of_target and record.target_accuracy and not quantity.of(record)]
        return Side(_known(by_seed | {record.seed: worst for record in lost}), "seed")
    certain = is_counted(quantity) or all(record.is_exact for record in records)
    exact = certain and len({*by_seed.values()}) == 1
    disturbed = not certain and any(record.disturbed for record in records)
    return Side(by_units(sound, quantity.of), exact=exact, disturbed=disturbed)


def by_units(records: Iterable[Record], value: Callable[[Record], float | None]) -> dict[Hashable, float]:
    """Return a number by launch, the median over its seeds, or of one launch by seed.

    Launches that were disturbed do not count if others of their record were not.
    """
    records = [*records]
    fair = [
        (launch, number)
        for record in records
        for launch, one in record.samples.items()
        if not (one.disturbed and not record.disturbed) and (number := value(one)) is not None
    ]
    by_launch = {launch: median(numbers) for launch, numbers in group_by_key(fair).items()}
    return _known(by_launch if len(by_launch) > 1 else {record.seed: value(record) for record in records})


def judge_methods(
    families: Sequence[Sequence[Sequence[Record]]], quantity: Quantity[Any], *, chosen: bool = False
) -> list[list[Judged]]:
    """Return for each family of methods the first against each other one, by quotients, or differences of shares.

    See :func:`hpcdl.analysis.statistics.judging.judge`. A method has a record for each seed.
    """
    sides = [[side(records, quantity) for records in methods] for methods in families]
    tolerance = 0.0 if is_counted(quantity) else SAME
    return judge(sides, quotient=not is_difference(quantity), chosen=chosen, tolerance=tolerance)


def is_counted(quantity: Quantity[Any]) -> bool:
    """Return True for bytes and counts, which have no noise."""
    return quantity.unit == "B" or "integer" in quantity.types


def is_difference(quantity: Quantity[Any]) -> bool:
    """Return True if a quantity is compared by a difference in percentage points: an accuracy."""
    return quantity.name.endswith("accuracy")


def _known(values: Mapping[Any, Any]) -> dict[Hashable, float]:
    return {unit: float(value) for unit, value in values.items() if value is not None and value == value}  # noqa: PLR0124 - NaN


def group_by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key in their order, the keys in the order of their first values."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


@lru_cache(maxsize=4096)
def _parsed(text: str) -> JsonObject:
    return dict(json.loads(text))


@lru_cache(maxsize=1024)
def _restored(kind: str, settings: str) -> Any:
    return restored(module_of(kind).SPEC, json.loads(settings))


def _times(given: JsonMapping) -> str:
    """Return where the times of the work are from; empty where it is measured."""
    if given.get("flops"):
        return f"{_number(given['flops'])} FLOP/s"
    source = given.get("times") or given.get("device")
    return f"{source}'s times" if source else ""


def _number(value: object) -> str:
    """Return a number in short; a record of another program may have anything in its place."""
    return f"{value:g}" if isinstance(value, (int, float)) else label(value)
