"""Figures of compressed gradients: accuracy over step, bytes and entries sent; speed over bandwidth.

They stand beside the sections of the same names in ``compression.py``.
"""

import re
from collections.abc import Sequence
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import NETWORKS
from hpcdl.report.formats.cells import digits, rate
from hpcdl.report.formats.document import Axis, Lines, Point, Section
from hpcdl.report.run.accuracy_charts import BYTES, STEP, Cost, Sparse, over_cost, over_shares
from hpcdl.report.run.curves import curves
from hpcdl.report.run.declaration import Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Scale, rows
from hpcdl.report.sections.compression import compared, sent_of


def _task(methods: Sequence[Method]) -> str:
    record = methods[0].record
    return ", ".join(filter(None, (record.model, record.dataset, record.network)))


def _accuracies(findings: Findings, cost: Cost) -> list[Lines]:
    """Return the accuracy of compressed and dense methods over what they cost."""
    groups: dict[str, list[tuple[str, Scale]]] = {}
    for methods in findings.problems:
        if compared(methods):
            setting, group = findings.settings.name(methods[0].record), groups.setdefault(_task(methods), [])
            shown = [row for row in rows(methods) if row.scale.record.ranks > 1 and not row.no_communication]
            group += [(", ".join(filter(None, (setting, row.name))), row.scale) for row in shown]
    return over_cost(groups, cost)


def speed_over_bandwidth(findings: Findings) -> list[Lines]:
    """Return the speed of each compressor / the dense speed on simulated networks, if the suite asks."""
    lines: dict[str, list[Point]] = {}
    for methods in findings.problems if "break_even" in findings.answered_by else ():
        if (network := methods[0].record.network) in NETWORKS:
            for pair in compared(methods):
                place = Point(1 / NETWORKS[str(network)].link.beta, pair.gain or 1.0)
                lines.setdefault(pair.row.name, []).append(place)
    axes = Axis("bandwidth of the links", rate, 10), Axis("speed / dense speed", digits, 10)
    note = "Simulated steps, against the fastest dense step on the same network."
    return curves("Speed / dense speed over bandwidth", axes, lines, note, references={"dense": lambda _rate: 1.0})


def over_entries(findings: Findings) -> list[Lines]:
    """Return accuracy, and bits of an entry, over the share of entries that is sent."""
    groups: dict[str, list[Sparse]] = {}
    for methods in findings.problems:
        for pair in compared(methods):
            family = re.sub(r"=[\d.e-]+", "", str(pair.scale.record.compression))
            dense = pair.dense.scale.median(Record.final_accuracy) if pair.dense else None
            if sent := sent_of(pair.row):
                groups.setdefault(_task(methods), []).append(Sparse(family, sent, pair.scale, dense))
    return over_shares(groups)


STEPS: Final = Declaration(
    87,
    lambda _: Section("Accuracy and step"),
    figures=(lambda findings: _accuracies(findings, STEP),),
    name="compression",
)
SENT: Final = Declaration(
    88,
    lambda _: Section("Accuracy and bytes"),
    figures=(lambda findings: _accuracies(findings, BYTES),),
    name="bytes",
)
BANDWIDTH: Final = Declaration(
    86, lambda _: Section("Speed over bandwidth"), figures=(speed_over_bandwidth,), name="break_even"
)
ENTRIES: Final = Declaration(89, lambda _: Section("Entries sent"), figures=(over_entries,), name="fidelity")
