"""Waiting and transfer: time of ranks in communication, late ranks, and stragglers."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Final

from hpcdl.report.formats.cells import NONE, digits, interval, plural, seconds
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import EVIDENCE, Answer, Declaration
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from hpcdl.analysis.network.waiting import Waiting
    from hpcdl.report.run.findings import Findings


STRAGGLER_NOTE = (
    "Throughput with the straggler by throughput without it, all measured images by the time they took. If every "
    "step waits: the rest of the throughput if all ranks wait for the straggler in every step, from the share of "
    "the step in which ranks work. If no step waits: the rest if each slow rank delays only itself."
)


def stragglers_page(findings: Findings) -> Section:
    """Return one row per method, scale and straggler."""
    names = Names(pair.fields for pair in findings.slowed)
    header = (
        *("method", "straggler", "ranks", "images/s without", "with", "with / without", "95 %"),
        *("if every step waits", "if no step waits"),
    )
    rows = [
        (
            names(pair.fields),
            str(pair.fields["straggler"]),
            str(pair.fields.get("ranks")),
            digits(pair.without),
            digits(pair.having),
            digits(pair.ratio.value) + (" DISTURBED" if pair.disturbed else ""),
            interval(pair.ratio.low, pair.ratio.high) if math.isfinite(pair.ratio.low) else NONE,
            digits(pair.waiting),
            digits(pair.free),
        )
        for pair in sorted(findings.slowed, key=lambda pair: -pair.ratio.value)
    ]
    table = Table("", header, rows, 2, [STRAGGLER_NOTE], "most throughput kept first")
    return Section("Stragglers", tables=[table.without_empty()] if rows else [])


def stragglers_answer(findings: Findings) -> Answer | None:
    """Return, per straggler, the methods that keep most and least of their throughput, undisturbed."""
    slowed = [pair for pair in findings.slowed if not pair.disturbed]
    names = Names(pair.fields for pair in slowed)
    by_straggler: dict[str, list[tuple[float, str]]] = {}
    for pair in slowed:
        several = len({other.fields.get("ranks") for other in slowed}) > 1
        where = f" on {pair.fields.get('ranks')} ranks" if several else ""
        kept = by_straggler.setdefault(str(pair.fields["straggler"]), [])
        kept.append((pair.ratio.value, names(pair.fields) + where))
    lines = []
    for straggler, kept in by_straggler.items():
        (most, best), (least, worst) = max(kept), min(kept)
        line = f"With {straggler}, {best} keeps {digits(most)} of its throughput"
        lines.append(f"{line}, {worst} {digits(least)}." if len(kept) > 1 else f"{line}.")
    return Answer(lines[0], lines[1:]) if lines else None


STRAGGLERS: Final = Declaration(40, stragglers_page, answer=stragglers_answer)


WAITING_NOTE: Final = (
    "Mean over ranks and steps. A rank waits while its message or native collective has not begun on another "
    "rank, and moves bytes once it has. Time in which the rank computes counts as neither. The cause of waiting "
    "is a late rank, or a transfer between other ranks, such as on a slow link. The latest rank works longer than "
    "others, which wait for it; a rank that begins late because of a slow link is not late. It is named if it is "
    "late by at least 5 % of a step and by more than twice the clock error, causes two thirds of the waiting for "
    "ranks, and leads in half of the steps, in all undisturbed launches. Stages of a pipeline differ by design: "
    "none is late."
)


def waiting_page(findings: Findings) -> Section:
    """Return one row per launch of a case in which ranks wait."""
    known = [(index, waits) for index, waits in enumerate(findings.waiting) if waits and _share(waits)]
    known.sort(key=lambda pair: (not pair[1].late, -_share(pair[1])))
    rows = [_waiting_row(findings, *pair) for pair in known]
    header = (
        *("case", "ranks", "step", "wait", "share waiting", "waiting for transfers", "move bytes", "share moving"),
        *("latest rank", "by", "verdict"),
    )
    table = Table("", header, rows, 2, [WAITING_NOTE], "late ranks first, then the longest share of waiting")
    return Section("Waiting and transfer", tables=[table.without_empty()] if rows else [])


def _share(waiting: Waiting) -> float:
    """Return the share of a step in which ranks wait."""
    step = float(waiting.step_seconds.mean())
    return float(waiting.waiting.mean()) / step if step else 0.0


def _waiting_row(findings: Findings, index: int, waiting: Waiting) -> tuple[str, ...]:
    step, wait, move = (
        float(values.mean()) for values in (waiting.step_seconds, waiting.waiting, waiting.transfer)
    )
    latest = waiting.latest
    return (
        str(waiting.fields.get("case")),
        str(waiting.fields.get("ranks")),
        seconds(step),
        seconds(wait),
        digits(_share(waiting)),
        seconds(float(waiting.waiting_for_transfers.mean())),
        seconds(move),
        digits(move / step if step else None),
        rank_name(findings, index, latest.rank) if latest else NONE,
        seconds(latest.seconds) if latest else NONE,
        _verdict(waiting, disturbed=bool(findings.launches[index].disturbed)),
    )


def _verdict(waiting: Waiting, *, disturbed: bool) -> str:
    if disturbed:
        return "disturbed"
    if waiting.late:
        return "late"
    if waiting.latest and waiting.fields.get("stages"):
        return "stages differ"
    if waiting.latest and waiting.latest.seconds <= 2 * waiting.clock_error:
        return "within clock error"
    return NONE


def rank_name(findings: Findings, index: int, rank: int) -> str:
    """Return the name of a rank, with its host where the ranks of the case are on several."""
    hosts = [] if findings.run.described[index].get("network") else findings.run.hosts_of(index)
    return f"rank {rank} on {hosts[rank]}" if len(set(hosts)) > 1 else f"rank {rank}"


def waiting_answer(findings: Findings) -> Answer | None:
    """Return one line per late rank: by how much it is late, and in how many cases.

    A rank is late in a case if it is in all of its undisturbed launches.
    """
    cases: dict[str, list[tuple[str, float]]] = {}
    for index, (waiting, launch) in enumerate(zip(findings.waiting, findings.launches, strict=True)):
        if waiting and not launch.disturbed:
            late = waiting.late
            name = rank_name(findings, index, late.rank) if late else ""
            cases.setdefault(str(waiting.fields.get("case")), []).append((name, late.seconds if late else 0.0))
    ranks: dict[str, list[float]] = {}
    for launches in cases.values():
        name = launches[0][0]
        if name and all(other == name for other, _ in launches):
            ranks.setdefault(name, []).append(median(time for _, time in launches))
    lines = []
    for name, times in sorted(ranks.items(), key=lambda rank: max(rank[1]), reverse=True):
        low, high = seconds(min(times)), seconds(max(times))
        by = low if low == high else f"{low} to {high}"
        where = f" in {plural(len(times), 'case')}" if len(times) > 1 else ""
        title = f"{name[0].upper()}{name[1:]}"
        lines.append(f"{title} is late by {by} in each step{where}: others wait for the rank, not for its links.")
    return Answer(lines[0], lines[1:]) if lines else None


WAITING: Final = Declaration(115, waiting_page, rows=EVIDENCE, answer=waiting_answer)
