"""Ratios of steps that answer a suite's question: of batches on one rank, and of layers split among ranks."""

from itertools import groupby
from typing import Final

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import Interval, ratio_interval
from hpcdl.registry import parts
from hpcdl.report.formats.cells import bounded, digits, listed, sentence
from hpcdl.report.formats.document import Section
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import network_name


def _ratio(record: Record, other: Record) -> Interval:
    """Return the step of a case / that of another, with a 95 % interval over launches."""
    return ratio_interval(*([np.array([time]) for time in side.launch_seconds or ()] for side in (record, other)))


def _trained(findings: Findings) -> list[Record]:
    return [record for record in findings.records if record.is_training and record.launch_seconds]


def _network(record: Record) -> str:
    return network_name(parts(str(record.model))[0])


def batch_answer(findings: Findings) -> Answer | None:
    """Return how many times as long as the smallest batch the largest one takes, per network on one rank."""
    fair = [record for record in _trained(findings) if record.ranks == 1 and not record.disturbed]
    fair.sort(key=lambda record: (record.model or "", record.global_batch or 0))
    alike = [list(records) for _, records in groupby(fair, key=lambda record: record.model)]
    ratios = [(_ratio(some[-1], some[0]), some) for some in alike if len(some) > 1]
    ratios.sort(key=lambda pair: -pair[0].value)
    if not ratios or "batch_times" not in findings.answered_by:
        return None
    (size, records), *others = ratios
    largest, least = (records[place].global_batch or 1 for place in (-1, 0))
    base = "one image" if least == 1 else f"a batch of {least}"
    first = f"a batch of {largest} takes {bounded(*size)} times as long as {base} for {_network(records[0])}"
    last = "".join(f", {digits(ratio.value)} for {_network(some[0])}" for ratio, some in others[-1:])
    details = [
        f"For {_network(some[0])} the largest batch takes {bounded(*ratio)} times as long as the smallest."
        for ratio, some in others[:-1]
    ]
    basis = [record for _, some in ratios for record in (some[0], some[-1])]
    return Answer(sentence(f"{first}{last}, not {largest / least:g} times"), details, basis)


def split_answer(findings: Findings) -> Answer | None:
    """Return how many times as fast as split batches split layers are, per network on the most ranks."""
    known = [record for record in _trained(findings) if record.ranks > 1]
    ratios = list[tuple[Interval, Record, Record]]()
    for record in known if "splits" in findings.answered_by else ():
        alike = [other for other in known if other.problem() == record.problem()]
        if record.parallelism and record.ranks == max(other.ranks for other in alike):
            whole = [other for other in alike if not other.parallelism and other.ranks == record.ranks]
            ratios += [(_ratio(other, record), record, other) for other in whole]
    fair = sorted(
        (one for one in ratios if not (one[1].disturbed or one[2].disturbed)),
        key=lambda one: (_split(one[1]) != LAYERS, -one[0].value),
    )
    where = findings.settings.where
    lines = [
        f"{_split(record)} is {bounded(*size)} times as fast as splitting the batch {where(record)}"
        for size, record, _ in fair
    ]
    left_out = dict.fromkeys(_network(one[1]) for one in ratios if one not in fair)
    lines += (
        [f"not decided for {listed(list(left_out))}: other load disturbed the measurement"] if left_out else []
    )
    headline, *details = map(sentence, lines) if lines else [""]
    return Answer(headline, details, [record for _, *sides in fair for record in sides]) if lines else None


LAYERS: Final = "splitting the layers"


def _split(record: Record) -> str:
    kind = parts(str(record.parallelism))[0]
    return LAYERS if kind == "model" else f"a {kind} split"


BATCH_TIMES: Final = Declaration(
    47, lambda _: Section("Batches"), answer=batch_answer, name="batch_times", table="scaling"
)
SPLITS: Final = Declaration(48, lambda _: Section("Splits"), answer=split_answer, name="splits", table="scaling")
