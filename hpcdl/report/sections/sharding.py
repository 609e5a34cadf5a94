"""Sharded training (ZeRO) beside synchronous training: bytes, memory, time, and the rate that links need."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from hpcdl import registry
from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import NONE, digits, interval, plural, rate, seconds
from hpcdl.report.formats.document import Column
from hpcdl.report.run.columns import METHOD, RANKS, median
from hpcdl.report.run.declaration import Answer, Declaration, certainty, per_setting
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, rows
from hpcdl.training.parts.traits import Strategy

NOTE: Final = (
    "Beyond computing: step less a rank's computing. Sent: by the rank that sends most in a step; messages that "
    "overlap with the next step count there, so that busy cores raise it. Sent per host: to others, if simulated "
    "without a topology. Memory: parameters, gradients and optimizer state, measured. Rate for 0.9: of a rank's "
    "link at which computing is 90 % of a step, if all messages overlap with it, and if none does."
)


def _compared(methods: Sequence[Method]) -> list[Row]:
    """Return the rows of a problem that shards, on several ranks, the most ranks first."""
    several = [row for row in rows(methods) if row.scale.record.ranks > 1 and not row.no_communication]
    several.sort(key=lambda row: -row.scale.record.ranks)
    return several if any(_shards(row.scale.record) for row in several) else []


def _shards(record: Record) -> bool:
    with suppress(ValueError):  # a strategy of another program
        return registry.traits("training", record.strategy, Strategy).shards_state
    return False


def _computing(row: Row) -> float:
    return row.scale.median(Record.compute_seconds) or 0.0


def _beyond_computing(row: Row) -> str:
    return seconds(max(0.0, (row.step_seconds or 0.0) - _computing(row)) if _computing(row) else None)


def _needed_rate(row: Row) -> str:
    sent, computing = row.scale.median(Record.bytes_sent_per_rank) or 0.0, _computing(row)
    return interval(0.9 * sent / computing, 9 * sent / computing, rate) if computing else NONE


COLUMNS: Final = (
    METHOD,
    RANKS,
    Column[Row]("step", lambda row: seconds(row.step_seconds or 0.0), importance="answer"),
    Column("beyond computing", _beyond_computing),
    median(Record.bytes_sent_per_rank, "sent per rank", importance="answer"),
    median(Record.bytes_sent_per_host),
    median(Record.memory_bytes_per_rank, importance="answer"),
    Column("rate for 0.9", _needed_rate),
)
COMPARED: Final = (
    (Record.bytes_sent_per_rank, "sends {} times the bytes"),
    (Record.memory_bytes_per_rank, "holds {} of the memory"),
    (Record.step_seconds, "takes {} times the step"),
)


def answer(findings: Findings) -> Answer | None:
    """Return the bytes, memory and step of each sharded method by those of synchronous training, on most ranks."""
    lines = []
    for methods in findings.problems:
        most = [row for row in _compared(methods) if row.scale.record.ranks == methods[0].scales[-1].record.ranks]
        bases = [row.scale for row in most if row.scale.record.strategy == "synchronous"]
        for row, base in ((row, base) for row in most for base in bases[:1] if row.scale is not base):
            pairs = ((words, row.scale.median(quantity), base.median(quantity)) for quantity, words in COMPARED)
            shares = [words.format(digits(part / whole)) for words, part, whole in pairs if part and whole]
            where = f"{findings.settings.name(methods[0].record)} on {plural(row.scale.record.ranks, 'rank')}"
            basis = certainty([*row.scale.records, *base.records])
            lines.append(f"{row.name} {', '.join(shares)} of synchronous training: {where} ({basis}).")
    return Answer(lines[0], lines[1:]) if lines else None


SECTION: Final = Declaration(
    88,
    lambda findings: per_setting(findings, "Sharding", COLUMNS, _compared, NOTE, "most ranks first"),
    answer=answer,
)
