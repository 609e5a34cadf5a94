"""Figures of the sections of ``compression.py``: accuracy over what it costs, speed over bandwidth."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import NETWORKS
from hpcdl.report.formats.cells import digits, rate
from hpcdl.report.formats.document import Axis, Lines, Point, Section
from hpcdl.report.run.curves import (
    ACCURACY,
    ACCURACY_NOTE,
    BYTES,
    STEP,
    Cost,
    accuracy_at,
    curves,
    hundredths,
    over_cost,
)
from hpcdl.report.run.declaration import Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, rows
from hpcdl.report.run.literature import in_words
from hpcdl.report.sections.compression import compared, sent_of


def _task(methods: Sequence[Method]) -> str:
    record = methods[0].record
    return ", ".join(filter(None, (record.model, record.dataset, record.network)))


def over(cost: Cost, findings: Findings) -> list[Lines]:
    """Return the accuracy of compressed and dense methods over what they cost."""
    groups = [
        (_task(methods), findings.settings.name(methods[0].record), shown)
        for methods in filter(compared, findings.problems)
        for shown in [[row for row in rows(methods) if row.scale.record.ranks > 1 and not row.no_communication]]
    ]
    return over_cost(groups, cost)


def speed_over_bandwidth(findings: Findings) -> list[Lines]:
    """Return the speed of each compressor / the dense speed on simulated networks, if the suite asks."""
    lines: dict[str, list[Point]] = {}
    for methods in findings.problems if "break_even" in findings.answered_by else ():
        if (network := methods[0].record.network) in NETWORKS:
            for pair in compared(methods):
                place = Point(1 / NETWORKS[str(network)].link.beta, pair.gain or 1.0)
                lines.setdefault(in_words(pair.name, pair.scale.record), []).append(place)
    axes = Axis("bandwidth of the links", rate, 10), Axis("speed / dense speed", digits, 10)
    note = "Simulated steps, compared with the fastest step without compression on the same network."
    return curves("Speed / dense speed over bandwidth", axes, lines, note, references={"dense": lambda _rate: 1.0})


def over_entries(findings: Findings) -> list[Lines]:
    """Return accuracy, and bits of an entry, over the share of entries that compressors of a family send."""
    made, axis = list[Lines](), Axis("entries sent", hundredths, 10)
    note = f"{ACCURACY_NOTE} Each line is one compressor with several values of its parameter."
    for methods in findings.problems:
        accuracies, bits, dense = dict[str, list[Point]](), dict[str, list[Point]](), list[Point]()
        for pair in compared(methods):
            family, sent = re.sub(r"=[\d.e-]+", "", str(pair.scale.record.compression)), sent_of(pair)
            for point in accuracy_at(pair.scale, sent):
                accuracies.setdefault(family, []).append(point)
                size = pair.scale.median(Record.bits_per_entry) or math.nan
                bits.setdefault(family, []).append(Point(point.x, size))
                dense += accuracy_at(pair.dense.scale, 1.0) if pair.dense else []
        level = {"dense": lambda _share, value=dense[0].y: value} if dense else {}
        if sum(map(len, accuracies.values())) > 2:
            title = f"Accuracy over entries sent: {_task(methods)}"
            made += curves(title, (axis, ACCURACY), accuracies, note, least=1, references=level)
            sizes = Axis("bits per gradient entry", digits, 2)
            made += curves(f"Bits over entries sent: {_task(methods)}", (axis, sizes), bits, note, least=1)
    return made


def _beside(order: int, name: str, title: str, chart: Callable[[Findings], list[Lines]]) -> Declaration:
    """Return the declaration of a figure of the section ``name``."""
    return Declaration(order, lambda _: Section(title), figures=(chart,), name=name)


BANDWIDTH: Final = _beside(86, "break_even", "Speed over bandwidth", speed_over_bandwidth)
STEPS: Final = _beside(87, "compression", "Accuracy and step", partial(over, STEP))
SENT: Final = _beside(88, "bytes", "Accuracy and bytes", partial(over, BYTES))
ENTRIES: Final = _beside(89, "fidelity", "Entries sent", over_entries)
