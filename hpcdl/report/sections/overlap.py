"""Overlap: time that a strategy saves by sending gradients while it computes, and the share it overlaps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpcdl.analysis.run.record_fields import configuration, parts, strategy
from hpcdl.analysis.statistics.estimates import Interval, ratio_interval
from hpcdl.report.formats.cells import NONE, interval, percent, plural, seconds
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.certainty import certainty
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.grouping import rows
from hpcdl.report.run.method_names import Names, scheme_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.run.record_fields import Key
    from hpcdl.report.formats.cells import Number
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Method, Scale


STRATEGIES: Final = ("synchronous", "layerwise")
"""Strategies that send the same sums; they differ in when."""
EXPOSED: Final = "exposed_communication_seconds"
HEADER: Final = ("scheme", "ranks", "strategy", "step", "saved", "95 %", "exposed", "overlapped")
NOTE: Final = (
    "Saved: share of the step of the strategy that the suite lists first. Overlapped: share of the communication "
    "that computing hides, which is 1 less the exposed communication by that of one sum after backward "
    "(bucket_bytes=0)."
)


class Timed(NamedTuple):
    """A strategy and what it saves."""

    name: str
    scale: Scale
    saved: Interval
    """Share of the first strategy's step; NaN for the first itself."""
    overlapped: float | None


def _groups(findings: Findings, methods: Sequence[Method]) -> list[list[Timed]]:
    """Return the strategies of each scheme and number of ranks, if there are several; the suite's first first."""
    groups: dict[Any, list[Scale]] = {}
    for row in rows(methods):
        fields = row.scale.records[0]
        if strategy(fields) in STRATEGIES and row.scale["ranks"] > 1 and not row.is_ceiling and row.step_seconds:
            key = (row.scale["ranks"], configuration({**fields, "training": ""}))
            groups.setdefault(key, []).append(row.scale)
    return [_timed(findings, scales) for scales in groups.values() if len(scales) > 1]


def _timed(findings: Findings, scales: Sequence[Scale]) -> list[Timed]:
    names = Names(record for scale in scales for record in scale.records)
    exposed = [scale.median(EXPOSED) for scale in scales if _is_one_sum(scale)]
    whole = exposed[0] if exposed else None
    keys = [{_key(record) for record in scale.records} for scale in scales]
    launches = [[launch for launch in findings.launches if _key(launch.fields) in known] for known in keys]
    vectors = [
        [launch.seconds for launch in group if not launch.disturbed] or [launch.seconds for launch in group]
        for group in launches
    ]
    timed = []
    for scale, vector in zip(scales, vectors, strict=True):
        ratio = ratio_interval(vector, vectors[0]) if scale is not scales[0] else Interval(*[math.nan] * 3)
        left = scale.median(EXPOSED)
        share = 1 - left / whole if whole and left is not None and not _is_one_sum(scale) else None
        saved = Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
        timed.append(Timed(names(scale.records[0]), scale, saved, share))
    return timed


def _is_one_sum(scale: Scale) -> bool:
    """Return True if all gradients are summed after backward, so that nothing overlaps."""
    return parts(str(scale["training"])) == ("synchronous", {"bucket_bytes": "0"})


def _key(fields: Mapping[str, Any]) -> Key:
    return (configuration(fields), fields.get("ranks"), fields.get("seed"))


def _percent(share: Number) -> str:
    return percent(share, 1)


def page(findings: Findings) -> Section:
    """Return one table per problem: each strategy's step, what it saves, and the share that it overlaps."""
    tables = []
    for methods in findings.problems:
        cells = [
            (
                scheme_name(scale.records[0]),
                str(scale["ranks"]),
                name,
                seconds(scale.median("step_seconds")),
                _percent(saved.value) if math.isfinite(saved.value) else "base",
                interval(saved.low, saved.high, _percent) if math.isfinite(saved.low) else NONE,
                seconds(scale.median(EXPOSED)),
                _percent(overlapped),
            )
            for group in _groups(findings, methods)
            for name, scale, saved, overlapped in group
        ]
        if cells:
            title = findings.settings.title(methods[0].fields)
            tables.append(Table(title, HEADER, cells, 1, [NOTE]).without_empty())
    return Section("Overlap", tables=tables, per="setting")


def answer(findings: Findings) -> Answer | None:
    """Return per scheme the share that each strategy overlaps, and what each saves of the first one's step."""
    shares, times = [], []
    for methods in findings.problems:
        for group in _groups(findings, methods):
            scale = group[0].scale
            where = ", ".join(
                filter(None, (findings.settings.name(scale.records[0]), scheme_name(scale.records[0])))
            )
            where = f"{where} on {plural(scale['ranks'], 'rank')}"
            basis = certainty(findings, [record for one in group for record in one.scale.records])
            known = [f"{one.name} {_percent(one.overlapped)}" for one in group if one.overlapped is not None]
            if known:
                shares.append(
                    f"{where}: of the communication {_joined(known)} overlap with computing ({basis})."
                    if len(known) > 1
                    else f"{where}: {known[0]} of the communication overlaps with computing ({basis})."
                )
            saved = [f"{one.name} {_saves(one.saved)}" for one in group[1:]]
            step = seconds(scale.median("step_seconds"))
            times.append(f"{where}: {_joined(saved)} of the step of {group[0].name}, {step} ({basis}).")
    lines = [*shares, *times]
    return Answer(lines[0], lines[1:]) if lines else None


def _saves(saved: Interval) -> str:
    """Return the share that is saved or lost, or that neither is sure."""
    bounds = f" ({interval(saved.low, saved.high, _percent)})" if math.isfinite(saved.low) else ""
    if saved.low <= 0 <= saved.high:
        return f"saves nothing beyond noise,{bounds}"
    return f"{'saves' if saved.value > 0 else 'costs'} {_percent(saved.value)}{bounds}"


def _joined(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


SECTION: Final = Declaration(82, page, answer=answer)
