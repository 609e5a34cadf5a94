"""What our own machinery costs: handing operations to the fabric, and tracing them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hpcdl.analysis.fields import ANY
from hpcdl.report.document import Section, Table
from hpcdl.report.names import scheme_name
from hpcdl.report.quantities import NONE, digits, interval, seconds, volume

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcdl.analysis.overhead import Overhead
    from hpcdl.analysis.statistics import Interval
    from hpcdl.report.quantities import Number
    from hpcdl.report.settings import Settings


def fabric(found: Sequence[Overhead]) -> Section:
    """The fabric over plain MPI, in time and as a ratio."""
    rows = [(volume(one.fields.get("message_bytes")), *_cells(one)) for one in found]
    header = ("size", "raw", "fabric", "fabric - raw", "95 %", "fabric / raw", "ratio 95 %")
    notes = ["raw: mpi4py's Sendrecv. fabric: the same exchange as every algorithm here does it."]
    return Section("Cost of the fabric", tables=[Table("", header, rows, notes=notes)] if rows else [])


def tracing(found: Sequence[Overhead], settings: Settings) -> Section:
    """Steps whose every event was traced over those of the same training that were not."""
    letters = [settings.letter(one.fields) for one in found]
    several = len(set(letters)) > 1
    rows = [
        (letter if several else "", _name(one.fields), str(one.fields.get("ranks")), *_cells(one))
        for letter, one in zip(letters, found, strict=True)
    ]
    header = ("setting", "case", "ranks", "steps", "events", "events - steps", "95 %", "ratio", "ratio 95 %")
    note = (
        "Of the same training, even steps record every message and computation, odd steps only themselves. "
        "Time of a step; ratio: events by steps. On one rank all schemes are one program, and pooled."
    )
    table = Table("", header, rows, 2, [note])
    return Section("Cost of tracing", tables=[table.without_empty()] if rows else [])


def _name(fields: Mapping[str, Any]) -> str:
    name = scheme_name({**fields, "aggregation": ANY} if fields.get("ranks") == 1 else fields)
    if (fields.get("kind") or "train") == "train":
        return name
    return f"{fields.get('collective')} {name} {volume(fields.get('message_bytes'))}"


def _cells(one: Overhead) -> tuple[str, ...]:
    return (
        seconds(one.without.value),
        seconds(one.having.value),
        seconds(one.difference.value),
        _bounds(one.difference, seconds),
        digits(one.ratio.value),
        _bounds(one.ratio, digits),
    )


def _bounds(found: Interval, shown: Callable[[Number], str]) -> str:
    return interval(found.low, found.high, shown) if math.isfinite(found.low) else NONE
