"""Sharded training (ZeRO) and synchronous training: bytes, memory, time, and the rate that links need."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from hpcdl import registry
from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import NONE, digits, interval, listed, longer, rate, seconds, signed
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.columns import METHOD, RANKS, median
from hpcdl.report.run.declaration import Answer, Declaration, per_setting
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, rows, time_ratio
from hpcdl.report.run.literature import in_words, title_of
from hpcdl.report.run.method_names import scheme_name
from hpcdl.training.parts.traits import Strategy

NOTE: Final = (
    "Beyond computing: step minus a rank's compute time. Sent per rank: by the rank that sends most in a step; "
    "messages that overlap with the next step count in that step, so that busy cores raise the number. Sent per "
    "host: to other hosts, if simulated without a topology. Memory: parameters, gradients and optimizer state, "
    "measured. Rate for 90 %: link rate at which computing takes 90 % of a step, if all messages overlap with "
    "computing, and if none do."
)


def _compared(methods: Sequence[Method]) -> list[Row]:
    """Return the rows of a problem that shards, on several ranks, the most ranks first."""
    several = [row for row in rows(methods) if row.scale.record.ranks > 1 and not row.no_communication]
    several.sort(key=lambda row: -row.scale.record.ranks)
    return several if any(map(_shards, several)) else []


def _shards(row: Row) -> bool:
    with suppress(ValueError):  # a strategy of another program
        return registry.traits("training", row.scale.record.strategy, Strategy).shards_state
    return False


def _beyond_computing(row: Row) -> str:
    computing = row.scale.median(Record.compute_seconds)
    return seconds(max(0.0, (row.step_seconds or 0.0) - computing) if computing else None)


def _needed_rate(row: Row) -> str:
    sent, computing = (row.scale.median(one) for one in (Record.bytes_sent_per_rank, Record.compute_seconds))
    return interval(0.9 * (sent or 0) / computing, 9 * (sent or 0) / computing, rate) if computing else NONE


COLUMNS: Final = (
    METHOD,
    RANKS,
    Column[Row]("step", lambda row: seconds(row.step_seconds or 0.0), importance="answer"),
    Column("beyond computing", _beyond_computing),
    median(Record.bytes_sent_per_rank, "sent per rank", importance="answer"),
    median(Record.bytes_sent_per_host),
    median(Record.memory_bytes_per_rank, importance="answer"),
    Column("rate for 90 %", _needed_rate),
)


def answer(findings: Findings) -> Answer | None:
    """Return bytes, memory and step of undisturbed sharded methods / synchronous training, on most ranks."""
    lines, basis = list[str](), list[Record]()
    for methods in findings.problems:
        ranks = methods[0].scales[-1].record.ranks
        most = [row for row in _compared(methods) if row.scale.record.ranks == ranks and not row.scale.disturbed]
        sharded = [row for row in most if _shards(row)]
        schemes = {scheme_name(row.scale.record) for row in sharded}
        base = next((row.scale for row in most if row.scale.record.strategy == "synchronous"), None)
        if base is None:
            continue
        for row in sharded:
            record = row.scale.record
            scheme = title_of(scheme_name(record)).removeprefix("a ") if len(schemes) > 1 else ""
            text = f"{record.system or in_words(row.name, record)} {_against(row.scale, base)}"
            where = findings.settings.where(record, scheme)
            lines.append(f"Compared with synchronous training {text} {where}.")
        basis += [record for scale in (base, *(row.scale for row in sharded)) for record in scale.records]
    return Answer(lines[0], lines[1:], basis) if lines else None


def _against(scale: Scale, base: Scale) -> str:
    """Return bytes, memory and step relative to those of ``base``, in words."""
    sent, memory = (
        (scale.median(quantity) or 0.0) / (base.median(quantity) or math.inf)
        for quantity in (Record.bytes_sent_per_rank, Record.memory_bytes_per_rank)
    )
    sends = "sends as many bytes" if round(sent, 2) == 1 else f"sends {digits(sent)} times the bytes"
    words = [sends] * bool(sent) + [f"needs {100 * memory:.0f} % of the memory"] * bool(memory)
    ratio = time_ratio(scale.records, base.records)
    time = longer(*ratio)
    if ratio.low <= 1 <= ratio.high and ratio.low < ratio.high:
        time = f"as long within noise ({signed(ratio.low)} to {signed(ratio.high)})"
    return listed([*words, f"takes {time}"])


SECTION: Final = Declaration(
    88,
    lambda findings: per_setting(findings, "Sharding", COLUMNS, _compared, NOTE, "most ranks first"),
    answer=answer,
)
