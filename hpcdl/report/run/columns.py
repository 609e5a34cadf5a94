"""Columns that several sections have: the method, its scale, and any quantity of a case or over its seeds."""

from typing import Any, Final

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import FORMATS, NONE, interval
from hpcdl.report.formats.tables import Column, Importance
from hpcdl.report.run.grouping import Row
from hpcdl.trace.quantity import Quantity

METHOD: Final = Column[Row]("method", lambda row: row.name)
RANKS: Final = Column[Row]("ranks", lambda row: str(row.scale.record.ranks), importance="name")


def median(
    quantity: Quantity[Any], heading: str = "", note: str = "", *, importance: Importance = "usual"
) -> Column[Row]:
    """Return the column of a number: its median over seeds, in its unit."""
    shown = FORMATS[quantity.unit]
    return Column(heading or quantity.heading, lambda row: shown(row.scale.median(quantity)), note, importance)


def stated(quantity: Quantity[Any], note: str = "", *, importance: Importance = "usual") -> Column[Row]:
    """Return the column of a property that does not depend on the seed; a dash if it is unknown or 0."""
    return Column(quantity.heading, lambda row: str(quantity.of(row.scale.record) or NONE), note, importance)


def value(quantity: Quantity[Any], heading: str = "", *, importance: Importance = "usual") -> Column[Record]:
    """Return the column of a number of each case, in its unit."""
    shown = FORMATS[quantity.unit]
    return Column(heading or quantity.heading, lambda record: shown(quantity.of(record)), importance=importance)


def bounds(quantity: Quantity[Any], heading: str = "95 %", *, importance: Importance = "usual") -> Column[Record]:
    """Return the column of the interval of a number of each case."""
    low, high, shown = quantity.low, quantity.high, FORMATS[quantity.unit]
    if low is None or high is None:
        raise ValueError(f"{quantity.name} has no interval")
    return Column(heading, lambda record: interval(low.of(record), high.of(record), shown), importance=importance)
