"""Cost of tracing: traced and untraced steps of the same training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.analysis.run.record_fields import ANY
from hpcdl.report.formats.cells import digits, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.method_names import scheme_name
from hpcdl.report.run.overhead import cells, is_noise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.report.run.findings import Findings


def page(found: Findings) -> Section:
    """Return one row per training that traced every second step."""
    letters = [found.settings.name(one.fields) for one in found.cost_of_tracing]
    several = len(set(letters)) > 1
    rows = [
        (letter if several else "", _name(one.fields), str(one.fields.get("ranks")), *cells(one))
        for letter, one in zip(letters, found.cost_of_tracing, strict=True)
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


def terminal(found: Findings) -> Section:
    """Return the same rows without intervals."""
    return page(found).brief("95 %")


def answer(found: Findings) -> Answer | None:
    """Return the range of the ratios."""
    costs = sorted(found.cost_of_tracing, key=lambda one: one.ratio.value)
    if not costs:
        return None
    low, high = digits(costs[0].ratio.value), digits(costs[-1].ratio.value)
    noise = sum(map(is_noise, costs))
    rest = f", {noise} of {len(costs)} within noise" if noise else ""
    return Answer(f"Time of a traced step by an untraced one: {low if low == high else f'{low} to {high}'}{rest}.")


SECTION = Declaration(25, page, terminal, answer)
