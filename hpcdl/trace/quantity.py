"""A quantity of a case, declared once: its name in every record, its type, unit, meaning and heading.

The class of a record has quantities as attributes: ``Record.step_seconds`` is the quantity, and
``record.step_seconds`` its value for one case. The trace checks recorded fields against them; columns of CSV and
JSON, their JSON Schema and their description, and columns of tables are made of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from statistics import median
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, overload

from hpcdl.trace.files import JsonObject

T = TypeVar("T")
Unit = Literal["", "s", "B", "B/s"]
"""Of a value; a pure number, a count or a word has none."""
Better = Literal["lower", "higher", ""]
Reduction = Literal["median", "greatest", "any", "all", "union", "first", ""]
"""Any, all: of flags; an unknown one may leave it unknown. Union: distinct texts, or the entries of all lists."""
BETTER: Final[dict[Unit, Better]] = {"s": "lower", "B": "lower", "B/s": "higher", "": ""}
"""By the unit, unless the quantity says otherwise."""
JSON_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class HasValues(Protocol):
    """An object whose class has quantities as attributes."""

    values: dict[str, Any]
    """By the name of the quantity; a missing one has its default."""


@dataclass(eq=False)
class Quantity(Generic[T]):
    """A number, word or flag about a case. One without a meaning is described together with the one before."""

    words: InitVar[str]
    """Its types."""
    default: T
    meaning: str = ""
    heading: str = ""
    """Short name, as in the header of a table."""
    _: KW_ONLY
    unit: Unit = ""
    choices: Sequence[str] = ()
    """Words that are valid; empty: any."""
    reduction: Reduction = ""
    """Value of several launches that record different ones; empty: it is unknown then."""
    seeded: bool = False
    """True: it depends on the seed, so that one seed decides nothing."""
    better: Better = ""
    """Which of two values is the better one; empty: neither."""
    name: str = field(init=False)
    types: tuple[str, ...] = field(init=False)
    """Of JSON."""

    def __post_init__(self, words: str) -> None:
        self.types = tuple(words.split())
        self.better = self.better or BETTER[self.unit]
        self.low: Quantity[T] | None = None
        self.high: Quantity[T] | None = None
        """Bounds of its 95 % interval."""

    def bounds(self) -> tuple[Quantity[T], Quantity[T]]:
        """Declare the bounds of its 95 % interval."""
        types = " ".join(self.types)
        self.low, self.high = (Quantity(types, self.default, unit=self.unit) for _ in range(2))
        return self.low, self.high

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, record: None, owner: type) -> Quantity[T]: ...

    @overload
    def __get__(self, record: HasValues, owner: type) -> T: ...

    def __get__(self, record: HasValues | None, owner: type) -> Quantity[T] | T:
        return self if record is None else self.of(record)

    def __set__(self, record: HasValues, value: T) -> None:
        record.values[self.name] = value

    def of(self, record: HasValues) -> T:
        """Return its value for a case."""
        value: T = record.values.get(self.name, self.default)
        return value

    def reduced(self, values: Sequence[T]) -> Any:
        """Return the value of several launches, by its reduction; None if it is unknown."""
        known: list[Any] = [value for value in values if value is not None and value == value]  # noqa: PLR0124 - NaN
        if self.reduction == "first" or not known or all(value == values[0] for value in values):
            return values[0]
        match self.reduction:
            case "median":
                return median(known) if "number" in self.types else round(median(known))
            case "greatest":
                return max(known)
            case "any" | "all":
                decides = self.reduction == "any"
                return decides if decides in known else None if None in values else not decides
            case "union" if known[0].startswith("["):
                return json.dumps([entry for text in known for entry in json.loads(text)])
            case "union":
                return "; ".join(dict.fromkeys(known))
        return None

    @property
    def schema(self) -> JsonObject:
        """The JSON Schema of its value."""
        if self.choices:
            return {"enum": [*self.choices, *([None] if "null" in self.types else [])]}
        return {"type": list(self.types) if len(self.types) > 1 else self.types[0]}

    def check(self, value: object) -> None:
        """Raise ValueError, naming the field, for a value of another type, or a word that is no choice."""
        kind = JSON_TYPES.get(type(value), "")
        if kind not in self.types and not (kind == "integer" and "number" in self.types):
            raise ValueError(f"field {self.name!r}: {value!a:.40} is not {list(self.types)}")
        if self.choices and value is not None and value not in self.choices:
            raise ValueError(f"field {self.name!r}: {value!a:.40} is not one of {[*self.choices, None]}")


def text(
    meaning: str = "", heading: str = "", *, choices: Sequence[str] = (), reduction: Reduction = ""
) -> Quantity[str | None]:
    """Declare a word or a sentence."""
    return Quantity("string null", None, meaning, heading, choices=choices, reduction=reduction)


def count(
    meaning: str = "", heading: str = "", *, unit: Unit = "", reduction: Reduction = ""
) -> Quantity[int | None]:
    """Declare a whole number."""
    return Quantity("integer null", None, meaning, heading, unit=unit, reduction=reduction)


def known_count(meaning: str = "") -> Quantity[int]:
    """Declare a whole number that every record has; 0 unless it is stated."""
    return Quantity("integer null", 0, meaning)


def number(
    meaning: str = "",
    heading: str = "",
    *,
    unit: Unit = "",
    seeded: bool = False,
    better: Better = "",
) -> Quantity[float | None]:
    """Declare a number, of several launches their median."""
    return Quantity(
        "number null", None, meaning, heading, unit=unit, reduction="median", seeded=seeded, better=better
    )


def seconds(meaning: str = "", heading: str = "", *, reduction: Reduction = "median") -> Quantity[float | None]:
    """Declare a time, of several launches their median."""
    return Quantity("number null", None, meaning, heading, unit="s", reduction=reduction)


def flag(meaning: str = "", *, reduction: Reduction = "") -> Quantity[bool | None]:
    """Declare a property that a case has or has not."""
    return Quantity("boolean null", None, meaning, reduction=reduction)


def declared(chapter: type) -> list[Quantity[Any]]:
    """Return the quantities that a class declares, in their order."""
    return [value for value in vars(chapter).values() if isinstance(value, Quantity)]
