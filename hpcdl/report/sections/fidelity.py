"""Fidelity of compressed gradients: entries sent, bits of each, cosine, error and residuals of each compressor."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.statistics.estimates import mean_interval
from hpcdl.report.formats.cells import NONE, digits, plural, volume
from hpcdl.report.formats.document import Section
from hpcdl.report.run.contents import EVIDENCE, Answer, Declaration, per_setting
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row
from hpcdl.report.sections.compression import LOST, compared, difference, points_of

NOTE: Final = (
    "Sent: share of a gradient's entries in a message, by bytes and bits, of an allgather. "
    "Cosine and error: of the last compressed sum of gradients against the dense sum. Bits: of a message for an "
    "entry; entropy: of an ideal code of the gaps between entries, with values or signs. "
    "Residual: norm of what is not sent, at the end and the largest at an evaluation. Quarters: norm of "
    "a rank's residual by that of its gradient, mean over steps of each quarter of the training. Memory: "
    "residuals and vectors of the compressor, on rank 0."
)
MEMORY: Final = "residual_bytes"
FIDELITY: Final = {
    "cosine": "gradient_cosine",
    "error": "gradient_error",
    "bits": "bits_per_entry",
    "entropy": "entropy_bits_per_entry",
    "residual": "residual_norm",
    "largest": "residual_norm_largest",
    **{f"quarter {quarter}": f"residual_to_gradient_q{quarter}" for quarter in range(1, 5)},
}


def page(findings: Findings) -> Section:
    """Return one table per problem: gradients and residuals of each compressor."""

    def cells(methods: Sequence[Method]) -> list[tuple[str, ...]]:
        shown = [row for row, _ in compared(methods) if any(map(row.scale.values, (*FIDELITY.values(), MEMORY)))]
        shown.sort(key=lambda row: row.scale.median("gradient_cosine") or np.inf)
        return [
            (
                row.name,
                str(row.scale.record.ranks),
                _percent(sent_of(row)),
                *(digits(row.scale.median(name)) for name in FIDELITY.values()),
                volume(row.scale.median(MEMORY)),
            )
            for row in shown
        ]

    header = ("method", "ranks", "sent", *FIDELITY, "memory")
    return per_setting(findings, "Compressed gradients", header, cells, NOTE, "lowest cosine first")


def sent_of(row: Row) -> float | None:
    """Return the share of entries that a rank sends; None if its bytes do not tell.

    A ring of p ranks sends 2 (p - 1) n words and an allgather p (p - 1) messages: the ratio is that of 2 n words
    and p messages.
    """
    ratio, bits = row.scale.median("compression_ratio"), row.scale.median("bits_per_entry")
    if not ratio or not bits or not str(row.scale.record.aggregation).startswith("allgather"):
        return None
    word = 64 if row.scale.record.dtype == "float64" else 32
    return 2 * word / (int(row.scale.record.ranks) * bits * ratio)


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{digits(100 * share)} %"


def answer(findings: Findings) -> Answer | None:
    """Return the smallest share of entries whose mean accuracy is the dense one's, and the bits of an entry."""
    known = [
        (sent, row, dense, points)
        for methods in findings.problems
        for row, dense in compared(methods)
        if dense is not None and (sent := sent_of(row)) is not None and (points := points_of(row, dense))
    ]
    if not known:
        return None
    full = [one for one in known if np.mean(one[-1]) >= -LOST]
    if full:
        sure = [one for one in full if mean_interval(one[-1]).low >= -LOST]
        sent, row, dense, points = min(sure or full, key=lambda one: one[0])
        reaches = f"reaches the dense accuracy within {LOST} points"
        if not sure:
            reaches = f"has a mean accuracy within {LOST} points of the dense one, which is not decided"
    else:
        sent, row, dense, points = max(known, key=lambda one: float(np.mean(one[-1])))
        reaches = f"is nearest to the dense accuracy, but not within {LOST} points"
    bits = [one[1].scale.median("bits_per_entry") for one in known]
    low, high = (digits(bound(value for value in bits if value is not None)) for bound in (min, max))
    own, entropy = (digits(row.scale.median(f"{name}bits_per_entry")) for name in ("", "entropy_"))
    seeds, change = plural(len(points), "seed"), difference(row, dense)
    return Answer(
        f"{row.name}, which sends {_percent(sent)} of the entries, {reaches} (difference {change}, {seeds}); "
        f"its entries take {own} bits (entropy {entropy}), those of all methods {low} to {high}."
    )


SECTION: Final = Declaration(89, page, rows=EVIDENCE, answer=answer)
