"""Overlap: time that a strategy saves by sending gradients while it computes, and the share it overlaps."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from hpcdl.analysis.run.record import Key, Record
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.registry import parts
from hpcdl.report.formats.cells import interval, percent, plural, seconds
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.declaration import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Scale, rows
from hpcdl.report.run.method_names import Names, scheme_name
from hpcdl.trace.quantity import Quantity

STRATEGIES: Final = ("synchronous", "layerwise")
"""Strategies that send the same sums; they differ in when."""
ONE_SUM: Final = ("synchronous", {"bucket_bytes": "0"})
"""Name and settings of the one that sends all gradients after backward."""
NOISE: Final = "~0"
"""Exposed communication that does not differ from 0."""


class Timed(NamedTuple):
    """A strategy and what it saves."""

    name: str
    scale: Scale
    saved: Interval
    """Share of the first strategy's step; NaN for the first itself."""
    overlapped: Interval
    """Share of the communication; NaN if it is not known."""


def _compared(methods: Sequence[Method]) -> list[list[Timed]]:
    """Return the strategies of each scheme and number of ranks, if there are several; the suite's first first."""
    groups: dict[Key, list[Scale]] = {}
    for row in rows(methods):
        record = row.scale.record
        if record.strategy in STRATEGIES and record.ranks > 1 and not row.no_communication and row.step_seconds:
            key = (record.ranks, record.but(training="").configuration("training"))
            groups.setdefault(key, []).append(row.scale)
    compared = []
    for scales in (scales for scales in groups.values() if len(scales) > 1):
        names = Names(record for scale in scales for record in scale.records)
        whole = next((scale for scale in scales if parts(str(scale.record.training)) == ONE_SUM), None)
        timed = []
        for scale in scales:
            saved = _less(scale, scales[0], Record.step_seconds)
            overlapped = _less(scale, whole, Record.exposed_communication_seconds)
            timed.append(Timed(names(scale.record), scale, saved, overlapped))
        compared.append(timed)
    return compared


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
    """Return per scheme the share that each strategy overlaps, and what each saves of the first one's step."""
    shares, times = [], []
    for group in (group for methods in findings.problems for group in _compared(methods)):
        first, records = group[0], [record for timed in group for record in timed.scale.records]
        record, basis = first.scale.record, certainty(records)
        subject = ", ".join(filter(None, (findings.settings.name(record), scheme_name(record))))
        where = f"{subject} on {plural(record.ranks, 'rank')}"
        if any(record.disturbed for record in records):
            where += ", without a verdict"
        if overlapped := [(name, share) for name, _, _, share in group if math.isfinite(share.value)]:
            exposed = "of the communication that one sum after backward exposes"
            shares.append(f"{where}: {_gains('overlaps', overlapped)} {exposed} ({basis}).")
        saved = _gains("saves", [(name, share) for name, _, share, _ in group[1:]])
        step = seconds(first.scale.median(Record.step_seconds))
        times.append(f"{where}: {saved} of the step of {first.name}, {step} ({basis}).")
    lines = [*shares, *times]
    return Answer(lines[0], lines[1:]) if lines else None


def _gains(verb: str, gains: Sequence[tuple[str, Interval]]) -> str:
    """Return the share of each strategy with its interval; one that may be zero is none beyond noise.

    A strategy that saves less than nothing adds. The verb stands where it is another one than before.
    """
    texts, before = list[str](), ""
    for name, gain in gains:
        word = "adds" if verb == "saves" and gain.high < 0 else verb
        share = Interval(-gain.value, -gain.high, -gain.low) if word == "adds" else gain
        shown = "none beyond noise" if share.low <= 0 <= share.high else percent(share.value)
        if verb == "overlaps" and share.value <= 0:
            shown = "none"
        bounds = f"({interval(share.low, share.high, percent)})" if math.isfinite(share.low) else ""
        texts.append(" ".join(filter(None, (name, word if word != before else "", shown, bounds))))
        before = word
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def least_exposed(name: str, methods: Sequence[Method]) -> list[Verdict]:
    """Return the methods with the least and the most exposed communication at the largest scale of all.

    Methods that were disturbed, or whose case without communication was, are left out.
    """
    largest = max(method.scales[-1].record.ranks for method in methods)
    exposed = [
        (time / step, NOISE if time == 0 else seconds(time), method.name)
        for method in methods
        for scale in method.scales[-1:]
        if scale.record.ranks == largest > 1 and not method.no_communication
        if not (scale.disturbed or scale.record.ceiling_disturbed)
        for time, step in [(scale.median(Record.exposed_communication_seconds), scale.median(Record.step_seconds))]
        if time is not None and step
    ]
    if len(exposed) < 2:
        return []
    least, most = (
        f"{method} {percent(part, 1)} of its step ({time})" for part, time, method in (min(exposed), max(exposed))
    )
    facts = {"of": f"{name}: " if name else "", "ranks": plural(largest, "rank"), "least": least, "most": most}
    return [Verdict(topic="scaling", word="exposed", case=name, facts=facts)]


SECTION: Final = Declaration(82, lambda _: Section("Overlap"), answer=answer)
