"""Overlap: time that a strategy saves by sending gradients while it computes, and the share it overlaps."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from hpcdl.analysis.run.record import Key, Record
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.registry import parts
from hpcdl.report.formats.cells import interval, listed, percent, plural, sentence
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Scale, Settings, rows
from hpcdl.report.run.literature import in_words, title_of
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
    """In words."""
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
            timed.append(Timed(in_words(names(scale.record), scale.record), scale, saved, overlapped))
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
    """Return what each strategy saves of the first one's step, and the share that it overlaps, if known."""
    groups = [group for methods in findings.problems for group in _compared(methods)]
    lines = [
        line for about in (_overlapped, _saved) for group in groups for line in about(group, findings.settings)
    ]
    basis = [record for group in groups for timed in group for record in timed.scale.records]
    return Answer(lines[0], lines[1:], basis) if lines else None


def _where(timed: Timed, settings: Settings) -> str:
    return settings.where(timed.scale.record, title_of(scheme_name(timed.scale.record)).removeprefix("a "))


def _overlapped(group: Sequence[Timed], settings: Settings) -> list[str]:
    """Return a sentence on the shares of the communication that strategies overlap, the largest first."""
    known = sorted((-share.value, name, share) for name, _, _, share in group if math.isfinite(share.value))
    if not known:
        return []
    (_, name, share), *others = known
    first = f"{name} overlaps {_percent(share)}" + "".join(
        f", {name} {percent(max(0.0, share.value))}" for _, name, share in others
    )
    return [
        sentence(f"{first} of the communication that one sum after backward exposes {_where(group[0], settings)}")
    ]


def _saved(group: Sequence[Timed], settings: Settings) -> list[str]:
    """Return sentences on what strategies save of the first one's step, add to it, or on noise that hides it."""
    first, base = group[0].name, _where(group[0], settings)
    disturbed = [name for name, scale, *_ in group if scale.disturbed]
    known = [(name, share) for name, _, share, _ in group[1:] if math.isfinite(share.value)]
    open_ = [name for name, share in known if share.low <= 0 <= share.high]
    ordered = sorted((one for one in known if one[0] not in open_), key=lambda one: -one[1].value)
    saves = [
        f"{name} {'saves ' * (not number)}{_percent(share) if not number else percent(share.value)}"
        for number, (name, share) in enumerate(ordered)
        if share.value > 0
    ]
    lines = [f"{listed(saves)} of the step of {first} {base}"] if saves else []
    lines += [
        f"{name} takes {_percent(Interval(-share.value, -share.high, -share.low))} longer than {first} {base}"
        for name, share in ordered
        if share.value <= 0
    ]
    noise = (
        f"noise hides what {listed(open_)} {'saves' if len(open_) == 1 else 'save'} of the step of {first} {base}"
    )
    doubt = f"not decided, as other load disturbed {listed(disturbed)}: " if disturbed else ""
    return [sentence(doubt + line) for line in lines] + [sentence(f"not decided: {noise}")] * bool(open_)


def _percent(share: Interval) -> str:
    """Return a share with its interval, if it has one."""
    bounds = f" ({interval(share.low, share.high, percent)})" if share.low < share.high else ""
    return percent(share.value) + bounds


def least_exposed(name: str, methods: Sequence[Method]) -> list[Verdict]:
    """Return the methods with the least and the most exposed communication at the largest scale of all.

    Methods that were disturbed, or whose case without communication was, are left out.
    """
    largest = max(method.scales[-1].record.ranks for method in methods)
    exposed = [
        (time / step, in_words(method.name, method.record))
        for method in methods
        for scale in method.scales[-1:]
        if scale.record.ranks == largest > 1 and not method.no_communication
        if not (scale.disturbed or scale.record.ceiling_disturbed)
        for time, step in [(scale.median(Record.exposed_communication_seconds), scale.median(Record.step_seconds))]
        if time is not None and step
    ]
    if len(exposed) < 2:
        return []
    least, most = (f"{method}, {percent(part)}" for part, method in (min(exposed), max(exposed)))
    facts = {"ranks": plural(largest, "rank"), "least": least, "most": most}
    return [Verdict(topic="scaling", word="exposed", case=name, facts=facts)]


SECTION: Final = Declaration(82, lambda _: Section("Overlap"), answer=answer)
