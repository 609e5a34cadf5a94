"""Ratios of steps that answer a suite's question: of batches on one rank, and of layers split among ranks."""

from itertools import groupby
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.registry import parts
from hpcdl.report.formats.cells import bounded, digits, listed, sentence
from hpcdl.report.formats.document import Section
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import time_ratio
from hpcdl.report.run.literature import network_name

LAYERS: Final = "splitting the layers"


def _trained(findings: Findings, name: str) -> list[Record]:
    """Return the cases of training with times if the suite asks for the answer ``name``."""
    asked = name in findings.answered_by
    return [record for record in findings.records if asked and record.is_training and record.launch_seconds]


def _network(record: Record) -> str:
    return network_name(parts(str(record.model))[0])


def batch_answer(findings: Findings) -> Answer | None:
    """Return how many times as long as the smallest batch the largest one takes, per network on one rank."""
    fair = [one for one in _trained(findings, "batch_times") if one.ranks == 1 and not one.disturbed]
    fair.sort(key=lambda record: (record.model or "", record.global_batch or 0))
    alike = [list(records) for _, records in groupby(fair, key=lambda record: record.model)]
    ends = [(records[0], records[-1]) for records in alike if len(records) > 1]
    ratios = [(time_ratio([last], [first]), first, last) for first, last in ends]
    ratios.sort(key=lambda one: -one[0].value)
    if not ratios:
        return None
    (size, first, last), *others = ratios
    largest, least = last.global_batch or 1, first.global_batch or 1
    base = "one image" if least == 1 else f"a batch of {least}"
    text = f"a batch of {largest} takes {bounded(*size)} times as long as {base} for {_network(first)}"
    text += "".join(f", {digits(ratio.value)} for {_network(one)}" for ratio, one, _ in others[-1:])
    details = [
        f"For {_network(one)} the largest batch takes {bounded(*ratio)} times as long as the smallest."
        for ratio, one, _ in others[:-1]
    ]
    basis = [record for _, *sides in ratios for record in sides]
    return Answer(sentence(f"{text}, not {largest / least:g} times"), details, basis)


def split_answer(findings: Findings) -> Answer | None:
    """Return how many times as fast as split batches split layers are, per network on the most ranks."""
    known = [record for record in _trained(findings, "splits") if record.ranks > 1]
    pairs = list[tuple[Record, Record]]()
    for record in (record for record in known if record.parallelism):
        alike = [other for other in known if other.problem() == record.problem()]
        if record.ranks == max(other.ranks for other in alike):
            pairs += [(record, one) for one in alike if not one.parallelism and one.ranks == record.ranks]
    fair = [(time_ratio([pair[1]], [pair[0]]), *pair) for pair in pairs if not any(r.disturbed for r in pair)]
    fair.sort(key=lambda one: (_split(one[1]) != LAYERS, -one[0].value))
    where = findings.settings.where
    lines = [
        sentence(f"{_split(record)} is {bounded(*size)} times as fast as splitting the batch {where(record)}")
        for size, record, _ in fair
    ]
    if left_out := dict.fromkeys(_network(pair[0]) for pair in pairs if any(r.disturbed for r in pair)):
        lines.append(f"Not decided for {listed(list(left_out))}: other load disturbed the measurement.")
    return Answer(lines[0], lines[1:], [record for _, *sides in fair for record in sides]) if lines else None


def _split(record: Record) -> str:
    kind = parts(str(record.parallelism))[0]
    return LAYERS if kind == "model" else f"a {kind} split"


BATCH_TIMES: Final = Declaration(
    47, lambda _: Section("Batches"), answer=batch_answer, name="batch_times", table="scaling"
)
SPLITS: Final = Declaration(48, lambda _: Section("Splits"), answer=split_answer, name="splits", table="scaling")
