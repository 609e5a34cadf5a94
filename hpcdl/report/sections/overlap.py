"""Overlap: time that a strategy saves by sending gradients while it computes, and the share it overlaps."""

import math
from collections.abc import Sequence
from typing import Any, Final

from hpcdl.analysis.run.record import Key, Record
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.registry import parts
from hpcdl.report.formats.cells import bounded, listed, longer, percent, sentence
from hpcdl.report.formats.document import Section
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Scale, rows
from hpcdl.report.run.literature import in_words, title_of
from hpcdl.report.run.method_names import Names, scheme_name
from hpcdl.trace.quantity import Quantity

STRATEGIES: Final = ("synchronous", "layerwise")
"""Strategies that send the same sums; they differ in when."""
ONE_SUM: Final = ("synchronous", {"bucket_bytes": "0"})
"""Name and settings of the one that sends all gradients after backward."""
BUCKETS: Final = {"synchronous": "sums in buckets"}
"""Name of the one with the usual buckets."""
NOISE: Final = "~0"
"""Exposed communication that does not differ from 0."""
Timed = tuple[str, Scale, Interval, Interval]
"""A strategy in words, the share that it saves of the first one's step, and the share that overlaps."""


def _compared(methods: Sequence[Method]) -> list[list[Timed]]:
    """Return the strategies of each scheme and number of ranks, if there are several; the suite's first first."""
    groups: dict[Key, list[Scale]] = {}
    for row in rows(methods):
        record = row.scale.record
        if record.strategy in STRATEGIES and record.ranks > 1 and not row.no_communication and row.step_seconds:
            key = (record.ranks, record.but(training="").configuration("training"))
            groups.setdefault(key, []).append(row.scale)
    return [_timed(scales) for scales in groups.values() if len(scales) > 1]


def _timed(scales: Sequence[Scale]) -> list[Timed]:
    names = Names(record for scale in scales for record in scale.records)
    whole = next((scale for scale in scales if parts(str(scale.record.training)) == ONE_SUM), None)
    return [
        (
            BUCKETS.get(str(scale.record.training)) or in_words(names(scale.record), scale.record),
            scale,
            _less(scale, scales[0], Record.step_seconds),
            _less(scale, whole, Record.exposed_communication_seconds),
        )
        for scale in scales
    ]


def _less(scale: Scale, base: Scale | None, quantity: Quantity[Any]) -> Interval:
    """Return 1 less the ratio of a time to the base's, within the bounds of both; NaN if unknown."""
    if base is None or scale is base:
        return NOTHING
    (value, low, high), (whole, least, most) = (
        (math.nan if number is None else number for number in (side.median(quantity), *side.bounds(quantity)))
        for side in (scale, base)
    )
    if not whole > 0:
        return NOTHING
    return Interval(1 - value / whole, 1 - high / (least or math.nan), 1 - low / (most or math.nan))


def answer(findings: Findings) -> Answer | None:
    """Return what each strategy saves of the first one's step, and the share that it overlaps, if known."""
    groups = [group for methods in findings.problems for group in _compared(methods)]
    lines = list[str]()
    for about in (_overlapped, _saved):
        for group in groups:
            record = group[0][1].record
            where = findings.settings.where(record, title_of(scheme_name(record)).removeprefix("a "))
            lines += [sentence(f"{text} {where}") for text in about(group)]
    basis = [record for group in groups for _, scale, *_ in group for record in scale.records]
    return Answer(lines[0], lines[1:], basis) if lines else None


def _overlapped(group: Sequence[Timed]) -> list[str]:
    shares = _shares("overlaps", [(name, share) for name, _, _, share in group if math.isfinite(share.value)])
    return [f"{shares} of the communication with computing"] if shares else []


def _saved(group: Sequence[Timed]) -> list[str]:
    """Return what strategies save of the first one's step or add to it, and which of them noise hides."""
    first = group[0][0]
    known = [(name, share) for name, _, share, _ in group[1:] if math.isfinite(share.value)]
    hidden = [(name, share) for name, share in known if share.low <= 0 <= share.high]
    told = [one for one in known if one not in hidden]
    saves = _shares("saves", [one for one in told if one[1].value > 0])
    lines = [f"{saves} of a step with {first}"] * bool(saves)
    for name, share in ((name, share) for name, share in told if share.value <= 0):
        time = longer(*(1 - bound for bound in (share.value, share.high, share.low)))
        lines.append(f"a step with {name} takes {time} {'as' if time.startswith('as') else 'than'} with {first}")
    if any(scale.disturbed for _, scale, *_ in group):
        lines = [f"not decided, as other load disturbed the measurement: {line}" for line in lines]
    if unknown := listed([name for name, _ in hidden]):
        lines.append(f"not decided whether time is saved by {unknown}: the difference from {first} may be noise")
    return lines


def _shares(verb: str, shares: Sequence[tuple[str, Interval]]) -> str:
    """Return the share of each strategy, the largest first, with its interval; empty if there are none."""
    if not shares:
        return ""
    (name, size), *others = sorted(shares, key=lambda one: -one[1].value)
    rest = (f"{name} {percent(max(0.0, share.value))}" for name, share in others)
    return listed([f"{name} {verb} {bounded(*size, percent)}", *rest])


SECTION: Final = Declaration(82, lambda _: Section("Overlap"), answer=answer, table="scaling")
