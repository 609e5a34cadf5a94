"""Compression of gradients: bytes, time, accuracy and break-even of each compressor."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.statistics.estimates import mean_interval
from hpcdl.report.formats.cells import NONE, digits, interval, rate, seconds, volume
from hpcdl.report.formats.document import Section
from hpcdl.report.run.contents import Answer, Declaration, certainty, per_setting, without
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, rows

WON: Final = 1.05
"""Compression wins if the step is so many times as fast."""
LOST: Final = 0.5
"""Percentage points by which the mean accuracy of seeds is lower if it counts; twice as many for a single seed."""
NOTE: Final = (
    "Ratio: bytes of a dense ring, by bytes on the wire. Speed-up: over the fastest dense step of "
    "the same problem on as many ranks. Break-even: bandwidth of a link below which a compressed exchange without "
    "overlap is faster than that dense one: bytes saved by time of encoding and decoding. Difference: of the "
    "accuracy from that of the same dense method, mean over seeds with its 95 % interval, in percentage points."
)
COST: Final = (
    *("method", "ranks", "bytes", "ratio", "encode", "decode", "step", "speed-up"),
    *("break-even", "accuracy", "difference"),
)


def page(findings: Findings) -> Section:
    """Return one table per problem with compressed gradients: bytes, time and accuracy."""

    def cells(methods: Sequence[Method]) -> list[tuple[str, ...]]:
        return [_cost(*pair) for pair in sorted(compared(methods), key=lambda pair: -(gain_of(*pair) or 0.0))]

    return per_setting(findings, "Compression", COST, cells, NOTE, "highest speed-up first")


def answer(findings: Findings) -> Answer | None:
    """Return whether compression pays: faster than the fastest dense step, and no less accurate beyond noise."""
    pairs = [
        (gain, row, dense)
        for methods in findings.problems
        for row, dense in compared(methods)
        if dense is not None and (gain := gain_of(row, dense)) is not None
    ]
    if not pairs:
        return None
    calm = [pair for pair in pairs if not _disturbed(pair[1]) and not _disturbed(pair[2])]
    fast = [pair for pair in calm if _wins(*pair)]
    won = [pair for pair in fast if not _is_less_accurate(*pair[1:])]
    gain, best, dense = max(won or fast or calm or pairs, key=lambda pair: pair[0])
    points = points_of(best, dense)
    times = f"{best.name} has {digits(gain)} times the dense speed"
    if points:
        own, other = (digits(row.scale.median("final_accuracy")) for row in (best, dense))
        times += f" and an accuracy of {own}, dense {other} (difference {difference(best, dense)} points)"
    cases = f"{len(calm)} {'cases' if len(calm) == len(pairs) else 'undisturbed cases'}"
    basis = certainty([record for pair in pairs for row in pair[1:] for record in row.scale.records])
    if won:
        lost = f"; {len(fast) - len(won)} more are faster and less accurate" if len(won) < len(fast) else ""
        pays = "Compression pays" if points else "By time alone, compression pays"
        return Answer(f"{pays} in {len(won)} of {cases} here; {times}{lost}. Basis: {basis}.")
    if fast:
        return Answer(
            f"Compression does not pay here: {len(fast)} of {cases} are faster, all of them less "
            f"accurate; {times}. Basis: {basis}."
        )
    doubt = "" if calm else "; all cases or their dense rivals were disturbed"
    if gain >= WON:
        return Answer(
            f"Whether compression pays is inconclusive: {times}{doubt or ', within noise'}. Basis: {basis}."
        )
    return Answer(f"Compression does not pay here: {times}{doubt}. Basis: {basis}.")


def _wins(gain: float, row: Row, dense: Row) -> bool:
    """Return True if the step is faster by more than the intervals of both."""
    slow, fast = row.scale.high("step_seconds_high"), dense.scale.low("step_seconds_low")
    return gain >= WON and (slow is None or fast is None or slow < fast)


def _is_less_accurate(row: Row, dense: Row) -> bool:
    """Return True if the accuracy is lower by :data:`LOST`, and beyond the interval over seeds."""
    points = points_of(row, dense)
    if len(points) < 2:
        return any(point < -2 * LOST for point in points)
    interval = mean_interval(points)
    return interval.value < -LOST and interval.high < 0


def _disturbed(row: Row) -> bool:
    return any(record.disturbed for record in row.scale.records)


def compared(methods: Sequence[Method]) -> list[tuple[Row, Row | None]]:
    """Return the compressed rows on several ranks, each with the fastest dense one on as many ranks."""
    shown = [row for row in rows(methods) if row.scale.record.ranks > 1 and not row.is_ceiling]
    dense = [row for row in shown if (row.scale.record.compression or "none") == "none"]
    pairs = []
    for row in (row for row in shown if row not in dense):
        rivals = [
            other for other in dense if other.scale.record.ranks == row.scale.record.ranks and other.step_seconds
        ]
        rivals = [rival for rival in rivals if not _disturbed(rival)] or rivals
        pairs.append((row, min(rivals, key=lambda other: other.step_seconds or 0.0, default=None)))
    return pairs


def gain_of(row: Row, dense: Row | None) -> float | None:
    """Return the speed-up; None if it is unknown."""
    before, now = dense.step_seconds if dense else None, row.step_seconds
    return before / now if before and now else None


def bandwidth(saved_bytes: float, added_seconds: float) -> float:
    """Return the break-even bandwidth of exchanges that do not overlap with computing (bytes/s).

    A step at the bandwidth B takes t + n/B. Compression saves ``saved_bytes`` of n and adds ``added_seconds`` to
    t: encoding, decoding and latencies. Steps are equal at saved_bytes/added_seconds. 0: compression never pays;
    infinity: it always does.
    """
    if saved_bytes <= 0:
        return np.inf if added_seconds < 0 else 0.0
    return saved_bytes / added_seconds if added_seconds > 0 else np.inf


def _cost(row: Row, dense: Row | None) -> tuple[str, ...]:
    scale = row.scale
    sent, encode, decode = map(scale.median, ("bytes_sent_per_rank", "encode_seconds", "decode_seconds"))
    whole = dense.scale.median("bytes_sent_per_rank") if dense else None
    known = None not in (whole, sent, encode, decode)
    level = bandwidth((whole or 0) - (sent or 0), (encode or 0) + (decode or 0)) if known else None
    return (
        row.name,
        str(scale.record.ranks),
        volume(sent),
        digits(scale.median("compression_ratio")),
        seconds(encode),
        seconds(decode),
        seconds(row.step_seconds),
        digits(gain_of(row, dense)),
        "any" if level == np.inf else "none" if level == 0 else rate(level),
        digits(scale.median("final_accuracy")),
        difference(row, dense),
    )


def points_of(row: Row, dense: Row) -> list[float]:
    """Return the differences of accuracies of the seeds that both have, in percentage points."""
    theirs = {record.seed: record.final_accuracy for record in dense.scale.records}
    pairs = [(record.final_accuracy, theirs.get(record.seed)) for record in row.scale.records]
    return [100 * (own - other) for own, other in pairs if own is not None and other is not None]


def difference(row: Row, dense: Row | None) -> str:
    """Return the difference of accuracies over the seeds that both have, with its interval."""
    points = points_of(row, dense) if dense is not None else []
    if not points:
        return NONE
    found = mean_interval(points)
    bounds = f" ({interval(found.low, found.high, lambda one: f'{one:+.1f}')})" if len(points) > 1 else ""
    return f"{found.value:+.1f}{bounds}"


COMPRESSION: Final = Declaration(87, page, terminal=without("bytes", "encode", "decode"), answer=answer)
