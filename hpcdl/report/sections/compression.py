"""Compression of gradients: bytes, time, accuracy and break-even of each compressor, and its fidelity.

Each compressed case is paired with the fastest dense one of its problem on as many ranks. Fidelity: entries sent,
bits of each, cosine and error of the sum, and residuals.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import Key, Record
from hpcdl.analysis.statistics.estimates import mean_interval
from hpcdl.report.formats.cells import NONE, digits, interval, plural, rate, seconds
from hpcdl.report.formats.document import Column, Section
from hpcdl.report.run.columns import METHOD, RANKS, median
from hpcdl.report.run.declaration import EVIDENCE, Answer, Declaration, certainty, per_setting
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, rows

WON: Final = 1.05
"""Compression wins if the step is so many times as fast."""
LOST: Final = 0.5
"""Percentage points by which the mean accuracy of seeds is lower if it counts; twice as many for a single seed."""


class Pair(NamedTuple):
    """A compressed row and the fastest dense one on as many ranks; None if there is none."""

    row: Row
    dense: Row | None

    @property
    def name(self) -> str:
        """Name of the compressed method."""
        return self.row.name

    @property
    def scale(self) -> Scale:
        """Records of the compressed method."""
        return self.row.scale

    @property
    def gain(self) -> float | None:
        """Speed-up; None if it is unknown."""
        before, now = self.dense.step_seconds if self.dense else None, self.row.step_seconds
        return before / now if before and now else None

    @property
    def wins(self) -> bool:
        """True if the step is faster by more than the intervals of both."""
        slow = self.row.scale.bounds(Record.step_seconds)[1]
        fast = self.dense.scale.bounds(Record.step_seconds)[0] if self.dense else None
        return (self.gain or 0.0) >= WON and (slow is None or fast is None or slow < fast)

    @property
    def is_disturbed(self) -> bool:
        """True if either was disturbed."""
        return any(_disturbed(row) for row in self if row)

    @property
    def points(self) -> list[float]:
        """Differences of accuracies of the seeds that both have, in percentage points."""
        return points_of(self.row, self.dense) if self.dense else []

    @property
    def is_less_accurate(self) -> bool:
        """True if the accuracy is lower by :data:`LOST`, and beyond the interval over seeds."""
        if len(self.points) < 2:
            return any(point < -2 * LOST for point in self.points)
        mean = mean_interval(self.points)
        return mean.value < -LOST and mean.high < 0

    @property
    def difference(self) -> str:
        """Mean of :attr:`points`, with its interval."""
        if not self.points:
            return NONE
        mean = mean_interval(self.points)
        bounds = f" ({interval(mean.low, mean.high, lambda end: f'{end:+.1f}')})" if len(self.points) > 1 else ""
        return f"{mean.value:+.1f}{bounds}"

    @property
    def break_even(self) -> str:
        """Bandwidth below which the compressed exchange is faster, in words."""
        whole = self.dense.scale.median(Record.bytes_sent_per_rank) if self.dense else None
        costs = (Record.bytes_sent_per_rank, Record.encode_seconds, Record.decode_seconds)
        sent, encode, decode = map(self.scale.median, costs)
        if None in (whole, sent, encode, decode):
            return NONE
        level = bandwidth((whole or 0) - (sent or 0), (encode or 0) + (decode or 0))
        return "any" if level == np.inf else "none" if level == 0 else rate(level)

    @property
    def records(self) -> list[Record]:
        """Those of both."""
        return [record for row in self if row for record in row.scale.records]


def _disturbed(row: Row) -> bool:
    return any(record.disturbed for record in row.scale.records)


def compared(methods: Sequence[Method]) -> list[Pair]:
    """Return the compressed rows on several ranks, each with the fastest dense one on as many ranks."""
    shown = [row for row in rows(methods) if row.scale.record.ranks > 1 and not row.no_communication]
    dense = [row for row in shown if (row.scale.record.compression or "none") == "none"]
    pairs = []
    for row in (row for row in shown if row not in dense):
        rivals = [
            other for other in dense if other.scale.record.ranks == row.scale.record.ranks and other.step_seconds
        ]
        rivals = [rival for rival in rivals if not _disturbed(rival)] or rivals
        pairs.append(Pair(row, min(rivals, key=lambda other: other.step_seconds or 0.0, default=None)))
    return pairs


def bandwidth(saved_bytes: float, added_seconds: float) -> float:
    """Return the break-even bandwidth of exchanges that do not overlap with computing (bytes/s).

    A step at the bandwidth B takes t + n/B. Compression saves ``saved_bytes`` of n and adds ``added_seconds`` to
    t: encoding, decoding and latencies. Steps are equal at saved_bytes/added_seconds. 0: compression never pays;
    infinity: it always does.
    """
    if saved_bytes <= 0:
        return np.inf if added_seconds < 0 else 0.0
    return saved_bytes / added_seconds if added_seconds > 0 else np.inf


def points_of(row: Row, dense: Row) -> list[float]:
    """Return the differences of accuracies of the seeds that both have, in percentage points."""
    theirs = {record.seed: record.final_accuracy for record in dense.scale.records}
    pairs = [(record.final_accuracy, theirs.get(record.seed)) for record in row.scale.records]
    return [100 * (own - other) for own, other in pairs if own is not None and other is not None]


COST_NOTE: Final = (
    "Ratio: bytes of a dense ring, by bytes on the wire. Speed-up: over the fastest dense step of "
    "the same problem on as many ranks. Break-even: bandwidth of a link below which a compressed exchange without "
    "overlap is faster than that dense one: bytes saved by time of encoding and decoding. Difference: of the "
    "accuracy from that of the same dense method, mean over seeds with its 95 % interval, in percentage points."
)


COST: Final = (
    METHOD,
    RANKS,
    median(Record.bytes_sent_per_rank, "bytes", importance="detail"),
    median(Record.compression_ratio),
    median(Record.encode_seconds, importance="detail"),
    median(Record.decode_seconds, importance="detail"),
    Column[Pair]("step", lambda pair: seconds(pair.row.step_seconds)),
    Column[Pair]("speed-up", lambda pair: digits(pair.gain), importance="answer"),
    Column[Pair]("break-even", lambda pair: pair.break_even, importance="answer"),
    median(Record.final_accuracy, "accuracy"),
    Column[Pair]("difference", lambda pair: pair.difference, importance="answer"),
)


def cost_page(findings: Findings) -> Section:
    """Return one table per problem with compressed gradients: bytes, time and accuracy."""

    def pairs(methods: Sequence[Method]) -> list[Pair]:
        return sorted(compared(methods), key=lambda pair: -(pair.gain or 0.0))

    return per_setting(findings, "Compression", COST, pairs, COST_NOTE, "highest speed-up first")


def cost_answer(findings: Findings) -> Answer | None:
    """Return whether compression pays: faster than the fastest dense step, and no less accurate beyond noise."""
    pairs = [pair for methods in findings.problems for pair in compared(methods) if pair.gain is not None]
    if not pairs:
        return None
    calm = [pair for pair in pairs if not pair.is_disturbed]
    fast = [pair for pair in calm if pair.wins]
    won = [pair for pair in fast if not pair.is_less_accurate]
    best = max(won or fast or calm or pairs, key=lambda pair: pair.gain or 0.0)
    times = f"{best.row.name} has {digits(best.gain)} times the dense speed"
    if best.points:
        own, other = (digits(row.scale.median(Record.final_accuracy)) for row in best if row)
        times += f" and an accuracy of {own}, dense {other} (difference {best.difference} points)"
    cases = f"{len(calm)} {'cases' if len(calm) == len(pairs) else 'undisturbed cases'}"
    basis = certainty([record for pair in pairs for record in pair.records])
    if won:
        lost = f"; {len(fast) - len(won)} more are faster and less accurate" if len(won) < len(fast) else ""
        pays = "Compression pays" if best.points else "By time alone, compression pays"
        return Answer(f"{pays} in {len(won)} of {cases} here; {times}{lost}. Basis: {basis}.")
    if fast:
        return Answer(
            f"Compression does not pay here: {len(fast)} of {cases} are faster, all of them less "
            f"accurate; {times}. Basis: {basis}."
        )
    doubt = "" if calm else "; all cases or their dense rivals were disturbed"
    if (best.gain or 0.0) >= WON:
        return Answer(
            f"Whether compression pays is inconclusive: {times}{doubt or ', within noise'}. Basis: {basis}."
        )
    return Answer(f"Compression does not pay here: {times}{doubt}. Basis: {basis}.")


COMPRESSION: Final = Declaration(87, cost_page, answer=cost_answer)


def break_even_answer(findings: Findings) -> Answer | None:
    """Return the fastest network up to which each compressor's step is faster than the dense one.

    A line for each problem on several simulated networks, which are ordered by their dense steps.
    """
    groups: dict[Key, list[Pair]] = {}
    for methods in findings.problems:
        if methods[0].record.network:
            group = groups.setdefault(methods[0].record.problem("network"), [])
            group += [pair for pair in compared(methods) if pair.gain]
    lines = []
    for group in groups.values():
        group.sort(key=lambda pair: -((pair.dense and pair.dense.step_seconds) or 0.0))
        gains: dict[str, list[tuple[str, float]]] = {}
        for pair in group:
            gains.setdefault(pair.row.name, []).append((str(pair.row.scale.record.network), pair.gain or 0.0))
        basis = certainty([record for pair in group for record in pair.records])
        if len({pair.row.scale.record.network for pair in group}) > 1:
            parts = "; ".join(f"{name} {_up_to(each)}" for name, each in gains.items())
            lines.append(f"Compressed steps are faster than the fastest dense one with {parts} ({basis}).")
    return Answer(lines[0], lines[1:]) if lines else None


def _up_to(gains: Sequence[tuple[str, float]]) -> str:
    """Return the last network before one on which the dense step is faster, from the slowest on."""
    slower = next((place for place, (_, gain) in enumerate(gains) if gain <= 1), len(gains))
    network, gain = gains[max(0, slower - 1)]
    times = f"{digits(gain)} times as fast"
    if slower == 0:
        return f"on none ({times} on {network})"
    if slower == len(gains):
        return f"up to {network} ({times}, the fastest network here)"
    return f"up to {network} ({times}; {digits(gains[slower][1])} on {gains[slower][0]})"


BREAK_EVEN: Final = Declaration(86, lambda _: Section("Break-even"), answer=break_even_answer, name="break_even")


FIDELITY_NOTE: Final = (
    "Sent: share of a gradient's entries in a message, by bytes and bits, of an allgather. "
    "Cosine and error: of the last compressed sum of gradients against the dense sum. Bits: of a message for an "
    "entry; entropy: of an ideal code of the gaps between entries, with values or signs. "
    "Residual: norm of what is not sent, at the end and the largest at an evaluation. Quarters: norm of "
    "a rank's residual by that of its gradient, mean over steps of each quarter of the training. Memory: "
    "residuals and vectors of the compressor, on rank 0."
)
FIDELITY: Final = (
    METHOD,
    RANKS,
    Column[Row]("sent", lambda row: _percent(sent_of(row)), importance="answer"),
    median(Record.gradient_cosine),
    median(Record.gradient_error),
    median(Record.bits_per_entry, importance="answer"),
    median(Record.entropy_bits_per_entry, importance="answer"),
    median(Record.residual_norm, importance="detail"),
    median(Record.residual_norm_largest),
    median(Record.residual_to_gradient_q1, importance="detail"),
    median(Record.residual_to_gradient_q2, importance="detail"),
    median(Record.residual_to_gradient_q3, importance="detail"),
    median(Record.residual_to_gradient_q4),
    median(Record.residual_bytes),
)


def fidelity_page(findings: Findings) -> Section:
    """Return one table per problem: gradients and residuals of each compressor."""

    def compressed(methods: Sequence[Method]) -> list[Row]:
        known = [pair.row for pair in compared(methods)]
        known = [row for row in known if any(column.cell(row) != NONE for column in FIDELITY[3:])]
        return sorted(known, key=lambda row: row.scale.median(Record.gradient_cosine) or np.inf)

    return per_setting(
        findings, "Compressed gradients", FIDELITY, compressed, FIDELITY_NOTE, "lowest cosine first"
    )


def sent_of(row: Row) -> float | None:
    """Return the share of entries that a rank sends; None if its bytes do not tell.

    A ring of p ranks sends 2 (p - 1) n words and an allgather p (p - 1) messages: the ratio is that of 2 n words
    and p messages.
    """
    ratio, bits = (
        row.scale.median(Record.compression_ratio),
        row.scale.median(Record.bits_per_entry),
    )
    if not ratio or not bits or not str(row.scale.record.aggregation).startswith("allgather"):
        return None
    word = 64 if row.scale.record.dtype == "float64" else 32
    return 2 * word / (int(row.scale.record.ranks) * bits * ratio)


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{digits(100 * share)} %"


def fidelity_answer(findings: Findings) -> Answer | None:
    """Return the smallest share of entries whose mean accuracy is the dense one's, and the bits of an entry."""
    known = [
        (sent, pair)
        for methods in findings.problems
        for pair in compared(methods)
        if (sent := sent_of(pair.row)) is not None and pair.points
    ]
    if not known:
        return None
    full = [(sent, pair) for sent, pair in known if np.mean(pair.points) >= -LOST]
    if full:
        sure = [(sent, pair) for sent, pair in full if mean_interval(pair.points).low >= -LOST]
        sent, best = min(sure or full, key=lambda entry: entry[0])
        reaches = f"reaches the dense accuracy within {LOST} points"
        if not sure:
            reaches = f"has a mean accuracy within {LOST} points of the dense one, which is not decided"
    else:
        sent, best = max(known, key=lambda entry: float(np.mean(entry[1].points)))
        reaches = f"is nearest to the dense accuracy, but not within {LOST} points"
    bits = [pair.row.scale.median(Record.bits_per_entry) for _, pair in known]
    low, high = (digits(bound(value for value in bits if value is not None)) for bound in (min, max))
    own, entropy = (
        digits(best.row.scale.median(quantity))
        for quantity in (Record.bits_per_entry, Record.entropy_bits_per_entry)
    )
    return Answer(
        f"{best.row.name}, which sends {_percent(sent)} of the entries, {reaches} (difference {best.difference}, "
        f"{plural(len(best.points), 'seed')}); its entries take {own} bits (entropy {entropy}), those of all "
        f"methods {low} to {high}."
    )


FIDELITY_SECTION: Final = Declaration(89, fidelity_page, rows=EVIDENCE, answer=fidelity_answer, name="fidelity")
