"""Compression of gradients: bytes, time, accuracy and break-even of each compressor, and its fidelity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

import numpy as np

from hpcdl.analysis.run.record import Key, Record, judge_methods
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.analysis.statistics.judging import Judged
from hpcdl.fabric.network import NETWORKS
from hpcdl.registry import parts
from hpcdl.report.formats.cells import CHANCE, NONE, digits, listed, percent, rate, seconds, sentence
from hpcdl.report.formats.document import Axis, Lines, Point, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import (
    BYTES,
    EVIDENCE,
    METHOD,
    RANKS,
    STEP,
    Answer,
    Cost,
    Declaration,
    curves,
    median,
    over_cost,
    per_setting,
)
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, changes_of_accuracy, in_points, rows
from hpcdl.report.run.names import (
    COMMA,
    MAX_LOSS,
    in_words,
    link_title,
    loss_in_words,
    points_in_words,
    scheme_name,
    title_of,
    where,
)

WON: Final = 1.05
"""Compression wins if the step is so many times as fast."""
LOST: Final = 0.5
"""Percentage points by which the mean accuracy of seeds is lower if it counts."""
UNKNOWN: Final = Judged(NOTHING, "open", "unknown")


@dataclass(frozen=True)
class Pair(Row):
    """A compressed row, and the fastest dense one on as many ranks; None if there is none."""

    dense: Row | None = None
    judged: Judged = UNKNOWN
    """The compressed step / the dense one."""
    accuracy: Judged = UNKNOWN
    """The compressed final accuracy less the dense one."""

    @property
    def gain(self) -> float | None:
        """Dense step / compressed step; None if it is unknown."""
        before, now = self.dense.step_seconds if self.dense else None, self.step_seconds
        return before / now if before and now else None

    @property
    def wins(self) -> bool:
        """True if the step is decidedly faster, by :data:`WON` or more."""
        return (self.gain or 0.0) >= WON and self.judged.word == "less"

    @property
    def change(self) -> Interval:
        """Change of the accuracy against the dense one, in percentage points."""
        return in_points(self.accuracy.size)

    @property
    def is_less_accurate(self) -> bool:
        """True if the mean is decidedly lower, by more than :data:`LOST`; that of one seed by twice as much."""
        decided = self.accuracy.word == "less" or (
            self.accuracy.reason == "one seed" and self.change.value < -2 * LOST
        )
        return decided and not self.change.value >= -LOST

    @property
    def difference(self) -> str:
        """:attr:`change` in words, with its interval over several seeds."""
        return points_in_words(self.change)

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
        return [*self.scale.records, *(self.dense.scale.records if self.dense else ())]


def compared(findings: Findings, methods: Sequence[Method]) -> list[Pair]:
    """Return the compressed rows of a problem on several ranks, each with the fastest dense one.

    Both have the same optimizer and ranks, and exchange as often. Those of all problems are judged together.
    """
    return findings.once(_compared)[id(methods)]


def _every(findings: Findings) -> list[Pair]:
    return [pair for methods in findings.problems for pair in compared(findings, methods)]


def _compared(findings: Findings) -> dict[int, list[Pair]]:
    problems = {id(methods): _paired(methods) for methods in findings.problems}
    dense = {id(pair.dense): pair.dense for pairs in problems.values() for pair in pairs if pair.dense}
    families = [
        [pair for pairs in problems.values() for pair in pairs if pair.dense is row] for row in dense.values()
    ]
    records = [
        [row.scale.records, *(pair.scale.records for pair in some)]
        for row, some in zip(dense.values(), families, strict=True)
    ]
    steps, accuracies = (judge_methods(records, one) for one in (Record.step_seconds, Record.final_accuracy))
    judged = {
        id(pair): replace(pair, judged=step.swapped, accuracy=accuracy.swapped)
        for some, *verdicts in zip(families, steps, accuracies, strict=True)
        for pair, step, accuracy in zip(some, *verdicts, strict=True)
    }
    return {number: [judged.get(id(pair), pair) for pair in pairs] for number, pairs in problems.items()}


def _paired(methods: Sequence[Method]) -> list[Pair]:
    shown = [row for row in rows(methods) if row.scale.record.ranks > 1 and not row.no_communication]
    dense = [row for row in shown if (row.scale.record.compression or "none") == "none"]
    pairs = []
    for row in (row for row in shown if row not in dense):
        timed = [other for other in dense if other.step_seconds and _exchanges(other) == _exchanges(row)]
        calm = [other for other in timed if not any(record.disturbed for record in other.scale.records)] or timed
        fastest = min(calm, key=lambda other: other.step_seconds or 0.0, default=None)
        pairs.append(Pair(**vars(row), dense=fastest))
    return pairs


def _exchanges(row: Row) -> tuple[int, str | None, str]:
    """Return ranks, optimizer, and the steps between two exchanges."""
    record = row.scale.record
    return record.ranks, record.optimizer, parts(record.training or "")[1].get("period", "")


def bandwidth(saved_bytes: float, added_seconds: float) -> float:
    """Return the break-even bandwidth of exchanges that do not overlap with computing (bytes/s).

    A step at the bandwidth B takes t + n/B: steps with fewer bytes n and a longer t are equal at
    saved_bytes/added_seconds. 0: compression never pays; infinity: it always does.
    """
    if saved_bytes <= 0:
        return np.inf if added_seconds < 0 else 0.0
    return saved_bytes / added_seconds if added_seconds > 0 else np.inf


COST_NOTE: Final = (
    "Dense: without compression. Dense / sent bytes: bytes of an uncompressed ring that sums once a step on as "
    "many ranks / bytes on the wire. Dense step: the fastest dense step of the same problem on as many ranks. "
    "Break-even: link bandwidth at which both are equally fast, bytes saved / (encoding time + decoding time), if "
    "nothing overlaps. Accuracy - dense: difference of final accuracies in percentage points, mean over seeds "
    "with its 95 % interval."
)
COST: Final = (
    METHOD,
    RANKS,
    median(Record.bytes_sent_per_rank, "bytes", importance="detail"),
    median(Record.compression_ratio, "dense / sent bytes"),
    median(Record.encode_seconds, importance="detail"),
    median(Record.decode_seconds, importance="detail"),
    Column[Pair]("step", lambda pair: seconds(pair.step_seconds)),
    Column[Pair]("dense step / step", lambda pair: digits(pair.gain), importance="answer"),
    Column[Pair]("break-even", lambda pair: pair.break_even, importance="answer"),
    Column[Pair]("accuracy", lambda pair: percent(pair.scale.median(Record.final_accuracy))),
    Column[Pair](
        "accuracy - dense", lambda pair: pair.difference.replace(" percentage points", ""), importance="answer"
    ),
)


def cost_page(findings: Findings) -> Section:
    """Return one table per problem with compressed gradients: bytes, time and accuracy."""
    pairs = lambda methods: sorted(compared(findings, methods), key=lambda pair: -(pair.gain or 0.0))
    return per_setting(findings, "Compression", COST, pairs, COST_NOTE, "largest quotient of steps first")


def _words(row: Row, *, scheme: bool = True) -> str:
    """Return the compressor in words, with the scheme of its messages, and with another strategy than sums."""
    record = row.scale.record
    name = row.name if scheme else ", ".join(part.rpartition(" + ")[2] for part in COMMA.split(row.name))
    if record.strategy in {"synchronous", ""}:
        name = scheme_name(record) if scheme else str(record.compression)
    return in_words(name, record)


def cost_answer(findings: Findings) -> Answer | None:
    """Return whether compression pays: faster than the fastest dense step, and no less accurate beyond noise."""
    pairs = [pair for pair in _every(findings) if pair.dense and pair.gain]
    if not pairs:
        return None
    calm = [pair for pair in pairs if not any(record.disturbed for record in pair.records)]
    fast = [pair for pair in calm if pair.wins]
    won = [pair for pair in fast if not pair.is_less_accurate]
    best = max(won or fast or calm or pairs, key=lambda pair: pair.gain or 0.0)
    name, place = _words(best), where(best.scale.record)
    changes = "" if best.difference == NONE else f" changes the accuracy by {best.difference}"
    if best.change.low < 0 < best.change.high and best.change.low < -LOST:
        changes = f" may cost accuracy, which is not decided ({best.difference})"
    speed = f"{digits(best.gain, 2)} times as fast as without compression"
    if won:
        cases = f"{len(calm)} {'cases' if len(calm) == len(pairs) else 'undisturbed cases'}"
        loss = " without a decided loss of accuracy" if changes else ""
        lines = [f"Compression saves time{loss} in {len(won)} of {cases}."]
        lines += [f"{len(fast) - len(won)} cases are faster, but less accurate."] if len(won) < len(fast) else []
        return Answer(sentence(f"{name} is {speed}{changes and ' and' + changes}{place}"), lines, best.records)
    claim = f"not decided whether compression helps (all cases were disturbed): {name}"
    if fast:
        claim = f"every compressor that saves time loses accuracy; the fastest, {name},"
    elif calm and (best.gain or 0.0) < WON:
        claim = f"no compressor saves time: the fastest, {name},"
    elif calm:
        claim = f"not decided whether compression helps ({CHANCE}): {name}"
    lines = [sentence(f"{name}{changes}{place}")] if changes else []
    return Answer(sentence(f"{claim} is {speed}{place}"), lines, best.records)


REDUCED: Final = {"quantization": "rounded", "pruning": "pruned"}
"""Conditions under which weights have fewer bits, in words."""


def bytes_answer(findings: Findings) -> Answer | None:
    """Return what methods that send fewer bytes than dense synchronous training cost in accuracy.

    None unless the suite asks. Rounded and pruned networks, which are problems of their own, count, too.
    """
    every = [row for methods in findings.problems for row in rows(methods) if "bytes" in findings.answered_by]
    base = next((row for row in every if scheme_name(row.scale.record) == row.scale.record.aggregation), None)
    if base is None or not (whole := base.scale.median(Record.bytes_sent_per_rank)):
        return None
    less = [row for row in every if (row.scale.median(Record.bytes_sent_per_rank) or whole) < whole]
    costs = [
        ((row.scale.median(Record.bytes_sent_per_rank) or whole) / whole, row, change)
        for row, change in zip(less, changes_of_accuracy(base.scale, (row.scale for row in less)), strict=True)
        if math.isfinite(change.low)
    ]
    costs.sort(key=lambda entry: (not _has_fewer_bits(entry[1].scale.record), entry[2].low < -MAX_LOSS, entry[0]))
    scheme = title_of(scheme_name(base.scale.record)).removeprefix("an ").removeprefix("a ")
    lines = {}
    for place, (share, row, loss) in enumerate(costs):
        conditions = dict(row.scale.record.conditions())
        reduced = "".join(f" with {how} weights" for name, how in REDUCED.items() if name in conditions)
        cost = f"changes the accuracy by {points_in_words(loss)}"
        if place == 0 and loss.low >= -MAX_LOSS:
            cost = f"costs {loss_in_words(loss)}"
        sends = f"{_words(row, scheme=False)}{reduced} sends {digits(100 * share, 2)} %"
        text = sentence(
            f"{sends} of an uncompressed {scheme}'s bytes and {cost}{where(row.scale.record.but(network=None))}"
        )
        lines[text] = (place > 0, not reduced)
    headline, *others = sorted(lines, key=lines.__getitem__) or [""]
    return Answer(headline, others) if headline else None


def _has_fewer_bits(record: Record) -> bool:
    """Return False for a method that only sends less often."""
    return record.compression not in {None, "none"} or bool({*dict(record.conditions())} & {*REDUCED})


def break_even_answer(findings: Findings) -> Answer | None:
    """Return per problem the fastest simulated network up to which the step of each compressor is faster."""
    groups = dict[Key, list[Pair]]()
    for methods in (methods for methods in findings.problems if methods[0].record.network):
        known = [pair for pair in compared(findings, methods) if pair.gain]
        groups.setdefault(methods[0].record.problem("network"), []).extend(known)
    lines = [_up_to(group) for group in groups.values() if len({pair.scale.record.network for pair in group}) > 1]
    return Answer(lines[0], lines[1:]) if lines else None


def _up_to(pairs: Sequence[Pair]) -> str:
    """Return for each network the compressors whose step is faster up to it, from the fastest network on.

    Each has its quotient of steps there.
    """
    ordered = sorted(pairs, key=lambda pair: -((pair.dense and pair.dense.step_seconds) or 0.0))
    networks = list(dict.fromkeys(pair.scale.record.network or "" for pair in ordered))
    compressors = {pair.name: pair.scale.record for pair in ordered}
    heads = [parts(record.compression or "")[0] for record in compressors.values()]
    up_to: dict[str, list[tuple[float, str]]] = {}
    for (name, record), head in zip(compressors.items(), heads, strict=True):
        gains = {pair.scale.record.network or "": pair.gain or 0.0 for pair in ordered if pair.name == name}
        faster = {network for network, gain in gains.items() if gain > 1}
        *_, last = "", *takewhile(faster.__contains__, networks)
        text = title_of(head) if heads.count(head) == 1 else in_words(name, record)
        up_to.setdefault(last, []).append((gains.get(last, 0.0), text))
    clauses = list[str]()
    for network in (network for network in networks[::-1] if network in up_to):
        (gain, best), *others = sorted(up_to[network], reverse=True)
        there = [
            f"{digits(gain)} times as fast there with {best}",
            *(f"{digits(x)} with {name}" for x, name in others),
        ]
        fastest = ", the fastest simulated network" if network == networks[-1] else ""
        clauses.append(f"up to {link_title(network)}{fastest}: {listed(there)}")
    if "" in up_to:
        clauses.append(f"on no network with {listed([name for _, name in up_to['']])}")
    place = where(ordered[0].scale.record.but(network=None))
    return f"Compression makes steps faster {'; '.join(clauses)}{place}."


FIDELITY_NOTE: Final = (
    "Sent: share of the gradient's entries in a message, computed from its bytes and bits (allgather only). "
    "Cosine and error compare the last compressed sum of gradients with the uncompressed sum. Bits: bits of all "
    "messages / entries sent. Entropy: bits of the last message with an ideal code for the distances between "
    "sent entries and for their values or signs. Residual: norm of the entries not sent yet, at the end; "
    "largest: at any evaluation. Memory: residuals and vectors of the compressor on rank 0."
)
FIDELITY: Final[tuple[Column[Pair], ...]] = (
    METHOD,
    RANKS,
    Column[Row]("sent", lambda row: _percent(sent_of(row)), importance="answer"),
    median(Record.gradient_cosine),
    median(Record.gradient_error),
    median(Record.bits_per_entry, importance="answer"),
    median(Record.entropy_bits_per_entry, importance="answer"),
    median(Record.residual_norm, importance="detail"),
    median(Record.residual_norm_largest),
    median(Record.residual_bytes),
)


def fidelity_page(findings: Findings) -> Section:
    """Return one table per problem: gradients and residuals of each compressor."""

    def shown(methods: Sequence[Method]) -> list[Pair]:
        known = [
            row for row in compared(findings, methods) if any(column.cell(row) != NONE for column in FIDELITY[3:])
        ]
        return sorted(known, key=lambda row: row.scale.median(Record.gradient_cosine) or np.inf)

    return per_setting(findings, "Compressed gradients", FIDELITY, shown, FIDELITY_NOTE, "lowest cosine first")


def sent_of(row: Row) -> float | None:
    """Return the share of entries that a rank sends; None if its bytes do not tell.

    A ring of p ranks sends 2 (p - 1) n words and an allgather p (p - 1) messages: the ratio is that of 2 n words
    and p messages, every ``period`` steps.
    """
    record = row.scale.record
    ratio, bits = map(row.scale.median, (Record.compression_ratio, Record.bits_per_entry))
    if not ratio or not bits or not record.period or not str(record.aggregation).startswith("allgather"):
        return None
    word = 64 if record.dtype == "float64" else 32
    return 2 * word * record.period / (int(record.ranks) * bits * ratio)


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{digits(100 * share)} %"


def _task(methods: Sequence[Method]) -> str:
    record = methods[0].record
    return ", ".join(filter(None, (record.model, str(record.dataset).partition("(")[0], record.network)))


def over(cost: Cost, findings: Findings) -> list[Lines]:
    """Return the accuracy of compressed and dense methods over what they cost."""
    groups = [
        (_task(methods), findings.settings.name(methods[0].record), shown)
        for methods in findings.problems
        if compared(findings, methods)
        for shown in [[row for row in rows(methods) if row.scale.record.ranks > 1 and not row.no_communication]]
    ]
    return over_cost(groups, cost)


def speed_over_bandwidth(findings: Findings) -> list[Lines]:
    """Return the speed of each compressor / the dense speed on simulated networks, if the suite asks."""
    lines: dict[str, list[Point]] = {}
    for methods in findings.problems if "break_even" in findings.answered_by else ():
        if (network := methods[0].record.network) in NETWORKS:
            for pair in compared(findings, methods):
                place = Point(1 / NETWORKS[str(network)].link.beta, pair.gain or 1.0)
                lines.setdefault(in_words(pair.name, pair.scale.record), []).append(place)
    axes = Axis("bandwidth of the links", rate, 10), Axis("speed / dense speed", digits, 10)
    note = "Simulated steps, compared with the fastest step without compression on the same network."
    return curves("Speed / dense speed over bandwidth", axes, lines, note, references={"dense": lambda _rate: 1.0})


BREAK_EVEN: Final = Declaration(
    86,
    lambda _: Section("Break-even"),
    answer=break_even_answer,
    figures=(speed_over_bandwidth,),
    name="break_even",
    table="compression",
)
COMPRESSION: Final = Declaration(87, cost_page, answer=cost_answer)
STEPS: Final = Declaration(
    87,
    lambda _: Section("Accuracy and step"),
    figures=(lambda findings: over(STEP, findings),),
    name="compression",
)
SENT: Final = Declaration(
    88,
    lambda _: Section("Bytes"),
    answer=bytes_answer,
    figures=(lambda findings: over(BYTES, findings),),
    name="bytes",
    table="compression",
)
FIDELITY_SECTION: Final = Declaration(89, fidelity_page, rows=EVIDENCE, name="fidelity")
