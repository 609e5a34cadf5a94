"""Costs of the fabric and of tracing: the same program with and without."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.run.record_fields import ANY
from hpcdl.report.formats.cells import NONE, digits, interval, seconds, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration, without
from hpcdl.report.run.method_names import scheme_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcdl.analysis.run.overhead import Overhead
    from hpcdl.analysis.statistics.estimates import Interval
    from hpcdl.report.formats.cells import Number
    from hpcdl.report.run.findings import Findings


def is_noise(overhead: Overhead) -> bool:
    """Return whether the difference is not above zero: its interval holds 0, or it is negative."""
    return overhead.difference.value <= 0 or overhead.difference.low <= 0


def cells(overhead: Overhead) -> tuple[str, ...]:
    """Return both times, their difference and their ratio, with intervals."""
    return (
        seconds(overhead.without.value),
        seconds(overhead.having.value),
        "within noise" if is_noise(overhead) else seconds(overhead.difference.value),
        _bounds(overhead.difference, seconds),
        digits(overhead.ratio.value),
        _bounds(overhead.ratio, digits),
    )


def _bounds(found: Interval, shown: Callable[[Number], str]) -> str:
    return interval(found.low, found.high, shown) if math.isfinite(found.low) else NONE


def fabric_page(findings: Findings) -> Section:
    """Return one row per size: difference and ratio."""
    rows = [
        (volume(overhead.fields.get("message_bytes")), *cells(overhead)) for overhead in findings.cost_of_fabric
    ]
    header = ("size", "raw", "fabric", "fabric - raw", "95 %", "fabric / raw", "ratio 95 %")
    notes = ["raw: mpi4py's Sendrecv. fabric: the same exchange as every algorithm here does it."]
    return Section("Cost of the fabric", tables=[Table("", header, rows, notes=notes)] if rows else [])


def fabric_answer(findings: Findings) -> Answer | None:
    """Return the ratio at the smallest and the largest size."""
    costs = sorted(findings.cost_of_fabric, key=lambda overhead: overhead.fields.get("message_bytes") or 0)
    if not costs:
        return None
    chosen = costs if len(costs) < 2 else [costs[0], costs[-1]]
    parts = [
        f"{digits(overhead.ratio.value)} at {volume(overhead.fields.get('message_bytes'))}"
        + (" (within noise)" if is_noise(overhead) else "")
        for overhead in chosen
    ]
    return Answer(f"Time of an exchange through the fabric by mpi4py's: {', '.join(parts)}.")


COST_OF_FABRIC: Final = Declaration(20, fabric_page, terminal=without("95 %"), answer=fabric_answer)


def tracing_page(findings: Findings) -> Section:
    """Return one row per training that traced every second step."""
    letters = [findings.settings.name(overhead.fields) for overhead in findings.cost_of_tracing]
    several = len(set(letters)) > 1
    rows = [
        (
            letter if several else "",
            _tracing_name(overhead.fields),
            str(overhead.fields.get("ranks")),
            *cells(overhead),
        )
        for letter, overhead in zip(letters, findings.cost_of_tracing, strict=True)
    ]
    header = ("setting", "case", "ranks", "steps", "events", "events - steps", "95 %", "ratio", "ratio 95 %")
    note = (
        "Of the same training, even steps record every message and computation, odd steps only themselves. "
        "Time of a step; ratio: events by steps. On one rank all schemes are one program, and pooled."
    )
    table = Table("", header, rows, 2, [note])
    return Section("Cost of tracing", tables=[table.without_empty()] if rows else [])


def _tracing_name(fields: Mapping[str, Any]) -> str:
    name = scheme_name({**fields, "aggregation": ANY} if fields.get("ranks") == 1 else fields)
    if (fields.get("kind") or "train") == "train":
        return name
    return f"{fields.get('collective')} {name} {volume(fields.get('message_bytes'))}"


def tracing_answer(findings: Findings) -> Answer | None:
    """Return the range of the ratios."""
    costs = sorted(findings.cost_of_tracing, key=lambda overhead: overhead.ratio.value)
    if not costs:
        return None
    low, high = digits(costs[0].ratio.value), digits(costs[-1].ratio.value)
    noise = sum(map(is_noise, costs))
    rest = f", {noise} of {len(costs)} within noise" if noise else ""
    return Answer(f"Time of a traced step by an untraced one: {low if low == high else f'{low} to {high}'}{rest}.")


COST_OF_TRACING: Final = Declaration(25, tracing_page, terminal=without("95 %"), answer=tracing_answer)
