"""Stragglers: throughput with a slow rank and without."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.report.formats.cells import NONE, digits, interval
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings

NOTE = (
    "Throughput with the straggler by throughput without it, all measured images by the time they took. If every "
    "step waits: the rest of the throughput if all ranks wait for the straggler in every step, from the share of "
    "the step in which ranks work. If no step waits: the rest if only the straggler itself is slower."
)


def page(found: Findings) -> Section:
    """Return one row per method, scale and straggler."""
    names = Names(one.fields for one in found.slowed)
    header = (
        *("method", "straggler", "ranks", "images/s without", "with", "with / without", "95 %"),
        *("if every step waits", "if no step waits"),
    )
    rows = [
        (
            names(one.fields),
            str(one.fields["straggler"]),
            str(one.fields.get("ranks")),
            digits(one.without),
            digits(one.having),
            digits(one.ratio.value) + (" DISTURBED" if one.disturbed else ""),
            interval(one.ratio.low, one.ratio.high) if math.isfinite(one.ratio.low) else NONE,
            digits(one.waiting),
            digits(one.free),
        )
        for one in found.slowed
    ]
    table = Table("", header, rows, 2, [NOTE])
    return Section("Stragglers", tables=[table.without_empty()] if rows else [])


def answer(found: Findings) -> Answer | None:
    """Return, per straggler, the methods that keep most and least of their throughput, undisturbed."""
    slowed = [one for one in found.slowed if not one.disturbed]
    names = Names(one.fields for one in slowed)
    by_straggler: dict[str, list[tuple[float, str]]] = {}
    for one in slowed:
        several = len({other.fields.get("ranks") for other in slowed}) > 1
        where = f" on {one.fields.get('ranks')} ranks" if several else ""
        kept = by_straggler.setdefault(str(one.fields["straggler"]), [])
        kept.append((one.ratio.value, names(one.fields) + where))
    lines = []
    for straggler, kept in by_straggler.items():
        (most, best), (least, worst) = max(kept), min(kept)
        line = f"With {straggler}, {best} keeps {digits(most)} of its throughput"
        lines.append(f"{line}, {worst} {digits(least)}." if len(kept) > 1 else f"{line}.")
    return Answer(lines[0], lines[1:]) if lines else None


SECTION = Declaration(40, page, answer=answer)
