"""Waiting and transfer: time of ranks in communication, and the rank that others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.declaration import Answer, Declaration
from hpcdl.report.document import Section, Table
from hpcdl.report.formatting import NONE, digits, plural, seconds

if TYPE_CHECKING:
    from hpcdl.analysis.waiting import Waiting
    from hpcdl.report.findings import Findings

NOTE: Final = (
    "Mean over ranks and steps. A rank waits while its message or native collective has not begun on another "
    "rank, and moves bytes once it has. Time in which the rank computes counts as neither. The cause of waiting "
    "is a late rank, or a transfer between other ranks, such as on a slow link. The latest rank works longer than "
    "others, which wait for it; a rank that begins late because of a slow link is not late. It is named if it is "
    "late by at least 5 % of a step and by more than twice the clock error, causes two thirds of the waiting for "
    "ranks, and leads in half of the steps."
)


def page(found: Findings) -> Section:
    """Return one row per launch of a case."""
    rows = [_row(found, index, one) for index, one in enumerate(found.waiting) if one]
    header = (
        *("case", "ranks", "step", "wait", "share waiting", "waiting for transfers", "move bytes", "share moving"),
        *("latest rank", "by", "verdict"),
    )
    return Section("Waiting and transfer", tables=[Table("", header, rows, 2, [NOTE])] if rows else [])


def _row(found: Findings, index: int, one: Waiting) -> tuple[str, ...]:
    step, wait, move = (float(values.mean()) for values in (one.step_seconds, one.waiting, one.transfer))
    latest = one.latest
    return (
        str(one.fields.get("case")),
        str(one.fields.get("ranks")),
        seconds(step),
        seconds(wait),
        digits(wait / step if step else None),
        seconds(float(one.waiting_for_transfers.mean())),
        seconds(move),
        digits(move / step if step else None),
        rank_name(found, index, latest.rank) if latest else NONE,
        seconds(latest.seconds) if latest else NONE,
        _verdict(one),
    )


def _verdict(one: Waiting) -> str:
    if one.late:
        return "late"
    if one.latest and one.latest.seconds <= 2 * one.clock_error:
        return "within clock error"
    return NONE


def rank_name(found: Findings, index: int, rank: int) -> str:
    """Return the name of a rank, with its host where the ranks of the case are on several."""
    hosts = [] if found.run.described[index].get("network") else found.run.hosts_of(index)
    return f"rank {rank} on {hosts[rank]}" if len(set(hosts)) > 1 else f"rank {rank}"


def answer(found: Findings) -> Answer | None:
    """Return one line per late rank: by how much it is late, and in how many cases."""
    late: dict[str, list[float]] = {}
    for index, one in enumerate(found.waiting):
        if one and one.late:
            late.setdefault(rank_name(found, index, one.late.rank), []).append(one.late.seconds)
    lines = []
    for name, times in sorted(late.items(), key=lambda one: max(one[1]), reverse=True):
        low, high = seconds(min(times)), seconds(max(times))
        by = low if low == high else f"{low} to {high}"
        cases = f" in {plural(len(times), 'case')}" if len(times) > 1 else ""
        title = f"{name[0].upper()}{name[1:]}"
        lines.append(f"{title} is late by {by} in each step{cases}: others wait for the rank, not for its links.")
    return Answer(lines[0], lines[1:]) if lines else None


SECTION: Final = Declaration(115, page, answer=answer)
