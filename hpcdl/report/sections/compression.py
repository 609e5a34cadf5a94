"""Compression of gradients: bytes, time, accuracy and break-even of each compressor; fidelity and residuals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.run.record_fields import configuration
from hpcdl.analysis.statistics.estimates import mean_interval
from hpcdl.report.formats.cells import NONE, digits, interval, plural, rate, seconds, volume, whole
from hpcdl.report.formats.charts import Axis, Lines, Point, Series
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import EVIDENCE, Answer, Declaration, without
from hpcdl.report.run.grouping import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.run.launches import Columns
    from hpcdl.analysis.run.record_fields import Key
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Method, Row


WON: Final = 1.05
"""Compression wins if the step is so many times as fast."""
RESIDUAL_NOTE: Final = (
    "Norm of what a rank has not sent, by that of its gradient in the same step; root mean squares over ranks. "
    "Medians over seeds and launches, bars are their range."
)


def residual_charts(findings: Findings) -> list[Lines]:
    """Return one chart per problem with residuals."""
    curves: dict[Key, list[Columns]] = {}
    for launch in findings.launches:
        if len(launch.residuals.get("step", ())) > 1:
            curves.setdefault(_key(launch.fields), []).append(launch.residuals)
    made = []
    for methods in findings.problems:
        series = []
        for row in rows(methods):
            keys = dict.fromkeys(_key(record) for record in row.scale.records)
            own = [launch for key in keys for launch in curves.get(key, [])]
            if points := _residual_points(own):
                series.append(Series(f"{row.name}, {plural(row.scale['ranks'], 'rank')}", points))
        if series:
            title = findings.settings.title(methods[0].scales[0].records[0])
            series.sort(key=lambda launch: -launch.points[-1].y)
            made.append(
                Lines(
                    f"Residual by gradient{': ' if title else ''}{title}",
                    Axis("step", whole),
                    Axis("residual / gradient", digits),
                    series,
                    RESIDUAL_NOTE,
                )
            )
    return made


def _key(fields: Mapping[str, Any]) -> Key:
    return (configuration(fields), fields.get("ranks"))


def _residual_points(own: Sequence[Columns]) -> list[Point]:
    """Return the median of each step that all launches have, with a gradient that is not zero."""
    if not own:
        return []
    common = set.intersection(*(set(scale["step"][scale["gradient_norm"] > 0].tolist()) for scale in own))
    points = []
    for step in sorted(common):
        places = [int(np.searchsorted(scale["step"], step)) for scale in own]
        values = [
            float(scale["residual_norm"][at] / scale["gradient_norm"][at])
            for scale, at in zip(own, places, strict=True)
        ]
        bounds = (min(values), max(values)) if len(values) > 1 else ()
        points.append(Point(step, float(np.median(values)), *bounds))
    return points


LOST: Final = 0.5
"""Percentage points by which the mean accuracy of seeds is lower if it counts; twice as many for a single seed."""
NOTE: Final = (
    "Ratio: bytes of a dense ring, by bytes on the wire. Effective bandwidth: bytes of the "
    "fastest dense exchange by the time of a step that is not computing. Speed-up: over the fastest dense step of "
    "the same problem on as many ranks. Break-even: bandwidth of a link below which a compressed exchange without "
    "overlap is faster than that dense one: bytes saved by time of encoding and decoding. Difference: of the "
    "accuracy from that of the same dense method, mean over seeds with its 95 % interval, in percentage points."
)
FIDELITY_NOTE: Final = (
    "Cosine and error: of the last compressed sum of gradients against the dense sum. Bits: of a message for an "
    "entry; entropy: of an ideal code of the gaps between entries, with values or signs. "
    "Residual: norm of what is not sent, at the end and the largest at an evaluation. Quarters: norm of "
    "a rank's residual by that of its gradient, mean over steps of each quarter of the training. Memory: "
    "residuals and vectors of the compressor, on rank 0."
)
COST: Final = (
    *("method", "ranks", "bytes", "ratio", "encode", "decode", "effective bandwidth", "step", "speed-up"),
    *("break-even", "accuracy", "difference"),
)
FIDELITY: Final = {
    "cosine": "gradient_cosine",
    "error": "gradient_error",
    "bits": "bits_per_entry",
    "entropy": "entropy_bits_per_entry",
    "residual": "residual_norm",
    "largest": "residual_norm_largest",
    **{f"quarter {quarter}": f"residual_to_gradient_q{quarter}" for quarter in range(1, 5)},
}
"""Field by column."""


def page(findings: Findings) -> Section:
    """Return one table per problem with compressed gradients: bytes, time and accuracy."""
    tables = []
    for methods in findings.problems:
        if compared := sorted(_compared(methods), key=lambda pair: -_speed_up(*pair)):
            title = findings.settings.title(methods[0].scales[0].records[0])
            cells = [_cost(*pair) for pair in compared]
            tables.append(Table(title, COST, cells, order="highest speed-up first").without_empty())
    return Section("Compression", [NOTE] if tables else [], tables=tables, per="setting")


def fidelity_page(findings: Findings) -> Section:
    """Return one table per problem: gradients and residuals of each compressor."""
    tables = []
    for methods in findings.problems:
        compared = [row for row, _ in _compared(methods)]
        compared.sort(key=lambda row: row.scale.median("gradient_cosine") or np.inf)
        if compared:
            title = findings.settings.title(methods[0].scales[0].records[0])
            header = ("method", "ranks", *FIDELITY, "memory")
            cells = [_fidelity(row) for row in compared]
            tables.append(Table(title, header, cells, order="lowest cosine first").without_empty())
    tables = [table for table in tables if len(table.header) > len(("method", "ranks"))]
    return Section("Compressed gradients", [FIDELITY_NOTE] if tables else [], tables=tables, per="setting")


def answer(findings: Findings) -> Answer | None:
    """Return whether compression pays: faster than the fastest dense step, and no less accurate beyond noise."""
    pairs = [
        (gain, row, dense)
        for methods in findings.problems
        for row, dense in _compared(methods)
        if dense is not None and (gain := _gain(row, dense)) is not None
    ]
    if not pairs:
        return None
    calm = [pair for pair in pairs if not _disturbed(pair[1]) and not _disturbed(pair[2])]
    fast = [scale for scale in calm if _wins(*scale)]
    won = [scale for scale in fast if not _is_less_accurate(*scale[1:])]
    gain, best, dense = max(won or fast or calm or pairs, key=lambda scale: scale[0])
    times = f"{digits(gain)} times the dense speed"
    cases = "cases" if len(calm) == len(pairs) else "undisturbed cases"
    if won:
        known = all(_points(*scale[1:]) for scale in won)
        lost = f"; {len(fast) - len(won)} more are faster and less accurate" if len(won) < len(fast) else ""
        return Answer(
            f"{'Compression pays' if known else 'By time alone, compression pays'} in {len(won)} of {len(calm)} "
            f"{cases} here; {best.name} has {times}{lost}."
        )
    if fast:
        own, other = (digits(scale.scale.median("final_accuracy")) for scale in (best, dense))
        return Answer(
            f"Compression does not pay here: {len(fast)} of {len(calm)} {cases} are faster, all of them less "
            f"accurate; {best.name} has {times} and an accuracy of {own}, dense {other}."
        )
    doubt = "" if calm else "; all cases or their dense rivals were disturbed"
    if gain >= WON:
        line = "Whether compression pays is inconclusive: its fastest step has"
        return Answer(f"{line} {times}, within noise{doubt}.")
    shared = all(row.scale["nodes"] == 1 and not row.scale["network"] for _, row, _ in pairs)
    place = ", where all ranks share the memory of one host" if shared else ""
    return Answer(f"Compression does not pay here{place}: its fastest step has {times}{doubt}.")


def _wins(gain: float, row: Row, dense: Row) -> bool:
    """Return True if the step is faster by more than the intervals of both."""
    slow, fast = row.scale.high("step_seconds_high"), dense.scale.low("step_seconds_low")
    return gain >= WON and (slow is None or fast is None or slow < fast)


def _is_less_accurate(row: Row, dense: Row) -> bool:
    """Return True if the accuracy is lower by :data:`LOST`, and beyond the interval over seeds."""
    points = _points(row, dense)
    if len(points) < 2:
        return any(point < -2 * LOST for point in points)
    interval = mean_interval(points)
    return interval.value < -LOST and interval.high < 0


def _disturbed(row: Row) -> bool:
    return any(record.get("disturbed") for record in row.scale.records)


def _compared(methods: Sequence[Method]) -> list[tuple[Row, Row | None]]:
    """Return the compressed rows on several ranks, each with the fastest dense one on as many ranks."""
    shown = [row for row in rows(methods) if row.scale["ranks"] > 1 and not row.is_ceiling]
    dense = [row for row in shown if (row.scale["compression"] or "none") == "none"]
    pairs = []
    for row in shown:
        if row in dense:
            continue
        rivals = [scale for scale in dense if scale.scale["ranks"] == row.scale["ranks"] and scale.step_seconds]
        rivals = [rival for rival in rivals if not _disturbed(rival)] or rivals
        pairs.append((row, min(rivals, key=lambda scale: scale.step_seconds or 0.0, default=None)))
    return pairs


def _speed_up(row: Row, dense: Row | None) -> float:
    """Return the speed-up; 0 if it is unknown."""
    return (_gain(row, dense) if dense is not None else None) or 0.0


def _gain(row: Row, dense: Row) -> float | None:
    return dense.step_seconds / row.step_seconds if dense.step_seconds and row.step_seconds else None


def bandwidth(saved_bytes: float, added_seconds: float) -> float:
    """Return the break-even bandwidth of exchanges that do not overlap with computing (bytes/s).

    A step at the bandwidth B takes t + n/B. Compression saves ``saved_bytes`` of n and adds ``added_seconds`` to
    t: encoding, decoding and latencies. Steps are equal at saved_bytes/added_seconds. 0: compression never pays;
    infinity: it always does.
    """
    if saved_bytes <= 0:
        return math.inf if added_seconds < 0 else 0.0
    return saved_bytes / added_seconds if added_seconds > 0 else math.inf


def _cost(row: Row, dense: Row | None) -> tuple[str, ...]:
    scale = row.scale
    sent, step = scale.median("bytes_sent_per_rank"), row.step_seconds
    encode, decode = scale.median("encode_seconds"), scale.median("decode_seconds")
    whole = dense.scale.median("bytes_sent_per_rank") if dense else None
    rest = None if step is None else step - (scale.median("compute_seconds") or 0.0)
    known = None not in (whole, sent, encode, decode)
    level = bandwidth((whole or 0) - (sent or 0), (encode or 0) + (decode or 0)) if known else None
    return (
        row.name,
        str(scale["ranks"]),
        volume(sent),
        digits(scale.median("compression_ratio")),
        seconds(encode),
        seconds(decode),
        rate(whole / rest) if whole and rest and rest > 0 else NONE,
        seconds(step),
        digits(_gain(row, dense) if dense else None),
        "any" if level == math.inf else "none" if level == 0 else rate(level),
        digits(scale.median("final_accuracy")),
        _difference(row, dense),
    )


def _fidelity(row: Row) -> tuple[str, ...]:
    scale = row.scale
    numbers = [digits(scale.median(name)) for name in FIDELITY.values()]
    return (row.name, str(scale["ranks"]), *numbers, volume(scale.median("residual_bytes")))


def _points(row: Row, dense: Row) -> list[float]:
    """Return the differences of accuracies of the seeds that both have, in percentage points."""
    theirs = {record.get("seed"): record.get("final_accuracy") for record in dense.scale.records}
    pairs = [(record.get("final_accuracy"), theirs.get(record.get("seed"))) for record in row.scale.records]
    return [100 * (own - other) for own, other in pairs if own is not None and other is not None]


def _difference(row: Row, dense: Row | None) -> str:
    """Return the difference of accuracies over the seeds that both have, with its interval."""
    points = _points(row, dense) if dense is not None else []
    if not points:
        return NONE
    found = mean_interval(points)
    if len(points) == 1:
        return f"{found.value:+.1f}"
    return f"{found.value:+.1f} ({interval(found.low, found.high, lambda one: f'{one:+.1f}')})"


COMPRESSION: Final = Declaration(
    87, page, terminal=without("bytes", "encode", "decode", "effective bandwidth"), answer=answer
)
FIDELITY_SECTION: Final = Declaration(89, fidelity_page, rows=EVIDENCE, figures=(residual_charts,))
