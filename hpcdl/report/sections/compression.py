"""Compression of gradients: bytes, arithmetic, fidelity, accuracy and break-even bandwidth of each compressor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.break_even import bandwidth
from hpcdl.analysis.statistics import mean_interval
from hpcdl.report.declaration import Answer, Declaration
from hpcdl.report.document import Section, Table
from hpcdl.report.formatting import NONE, digits, interval, rate, seconds, volume
from hpcdl.report.grouping import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.report.findings import Findings
    from hpcdl.report.grouping import Method, Row

LEAST: Final = 1.05
"""Compression pays if the step is so many times as fast as the fastest dense one."""
NOTE: Final = (
    "Ratio: bytes of a dense exchange by the same scheme, by bytes on the wire. Effective bandwidth: bytes of the "
    "fastest dense exchange by the time of a step that is not computing. Speed-up: over the fastest dense step of "
    "the same problem on as many ranks. Break-even: bandwidth of a link below which a compressed exchange without "
    "overlap is faster than that dense one: bytes saved by time of encoding and decoding."
)
FIDELITY: Final = (
    "Cosine and error: of the last compressed sum of gradients against the dense sum. Residual: norm of what is "
    "not sent, at the end and the largest. Bits: of a message for an entry; entropy: of an ideal code of the gaps "
    "between entries, with values or signs. Difference: of the accuracy from that of the fastest dense method, "
    "mean over seeds with its 95 % interval, in percentage points."
)
COST: Final = (
    *("method", "ranks", "bytes", "ratio", "encode", "decode", "effective bandwidth", "step", "speed-up"),
    "break-even",
)
LOSS: Final = (
    *("method", "ranks", "cosine", "error", "residual", "largest", "memory", "bits", "entropy", "accuracy"),
    "difference",
)


def page(found: Findings) -> Section:
    """Return two tables per problem with compressed gradients: cost, and fidelity with accuracy."""
    tables: list[Table] = []
    for methods in found.problems:
        compared = _compared(methods)
        if not compared:
            continue
        title = found.settings.title(methods[0].scales[0].records[0])
        cost = [_cost(row, dense) for row, dense in compared]
        tables.append(Table(title, COST, cost, notes=[NOTE]).without_empty())
        fidelity = [_fidelity(row, dense) for row, dense in compared]
        tables.append(Table("", LOSS, fidelity, notes=[FIDELITY]).without_empty())
    return Section("Compression", tables=tables)


def terminal(found: Findings) -> Section:
    """Return the verdict, and the costs without notes."""
    line = answer(found)
    tables = page(found).tables[::2]
    return Section("Compression", [line.headline], tables=tables).brief() if line else Section("Compression")


def answer(found: Findings) -> Answer | None:
    """Return whether compression pays: the fastest compressed step against the fastest dense one."""
    pairs = [
        (gain, row)
        for methods in found.problems
        for row, dense in _compared(methods)
        if dense is not None and (gain := _gain(row, dense)) is not None
    ]
    if not pairs:
        return None
    gain, best = max(pairs, key=lambda pair: pair[0])
    if gain < LEAST:
        return Answer(f"Compression does not pay here: its fastest step has {digits(gain)} times the dense speed.")
    won = len([one for one, _ in pairs if one >= LEAST])
    cases = f"{won} of {len(pairs)} cases"
    return Answer(f"Compression pays in {cases} here; {best.name} has {digits(gain)} times the dense speed.")


def _compared(methods: Sequence[Method]) -> list[tuple[Row, Row | None]]:
    """Return the compressed rows on several ranks, each with the fastest dense one on as many ranks."""
    found = [row for row in rows(methods) if row.scale["ranks"] > 1 and not row.is_ceiling]
    dense = [row for row in found if (row.scale["compression"] or "none") == "none"]
    pairs = []
    for row in found:
        if row in dense:
            continue
        rivals = [one for one in dense if one.scale["ranks"] == row.scale["ranks"] and one.step_seconds]
        pairs.append((row, min(rivals, key=lambda one: one.step_seconds or 0.0, default=None)))
    return pairs


def _gain(row: Row, dense: Row) -> float | None:
    return dense.step_seconds / row.step_seconds if dense.step_seconds and row.step_seconds else None


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
        "any" if level == np.inf else "none" if level == 0 else rate(level),
    )


def _fidelity(row: Row, dense: Row | None) -> tuple[str, ...]:
    scale = row.scale
    names = ("gradient_cosine", "gradient_error", "residual_norm", "residual_norm_largest")
    memory = scale.median("residual_bytes")
    bits = (scale.median(name) for name in ("bits_per_entry", "entropy_bits_per_entry"))
    return (
        row.name,
        str(scale["ranks"]),
        *(digits(scale.median(name)) for name in names),
        volume(memory),
        *map(digits, bits),
        digits(scale.median("final_accuracy")),
        _difference(row, dense),
    )


def _difference(row: Row, dense: Row | None) -> str:
    """Return the difference of accuracies over the seeds that both have, with its interval."""
    if dense is None:
        return NONE
    theirs = {one.get("seed"): one.get("final_accuracy") for one in dense.scale.records}
    pairs = [(one.get("final_accuracy"), theirs.get(one.get("seed"))) for one in row.scale.records]
    points = [100 * (own - other) for own, other in pairs if own is not None and other is not None]
    if not points:
        return NONE
    found = mean_interval(points)
    if len(points) == 1:
        return f"{found.value:+.1f}"
    return f"{found.value:+.1f} ({interval(found.low, found.high, lambda one: f'{one:+.1f}')})"


SECTION: Final = Declaration(87, page, terminal=terminal, answer=answer)
