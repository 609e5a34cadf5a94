"""Charts of final accuracy over what a method costs or sends."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import NONE, Number, digits, seconds, volume
from hpcdl.report.formats.document import Axis, Lines, Point, Series
from hpcdl.report.run.curves import trade_off
from hpcdl.report.run.grouping import Scale
from hpcdl.trace.quantity import Quantity


def hundredths(share: Number) -> str:
    """Return a share in percent with up to four digits, so that near ones are told apart."""
    return NONE if share is None else f"{100 * share:.4g} %"


ACCURACY: Final = Axis("final accuracy", hundredths)
NOTE: Final = "Medians over seeds, bars are the range of accuracies."


Cost = tuple[str, Quantity[Any], Axis]
"""What a method costs: in words, as a quantity, as the axis of a chart."""
STEP: Final[Cost] = ("step", Record.step_seconds, Axis("step", seconds, 10))
BYTES: Final[Cost] = ("bytes sent", Record.bytes_sent_per_rank, Axis("bytes a rank sends a step", volume, 10))


def over_cost(groups: Mapping[str, Sequence[tuple[str, Scale]]], cost: Cost) -> list[Lines]:
    """Return the accuracy of named methods over a cost; ``groups``: by title."""
    words, quantity, axis = cost
    made = []
    for title, methods in groups.items():
        places = {name: _at(scale, scale.median(quantity)) for name, scale in methods}
        points = {name: point for name, point in places.items() if point}
        made += trade_off(f"Accuracy over {words}: {title}", (axis, ACCURACY), points, NOTE)
    return made


def _at(scale: Scale, place: float | None) -> Point | None:
    accuracies = scale.values(Record.final_accuracy)
    if not accuracies or not place:
        return None
    return Point(place, float(np.median(accuracies)), min(accuracies), max(accuracies))


class Sparse(NamedTuple):
    """A compressor that sends a share of a gradient's entries."""

    family: str
    """Name that it shares with those which differ in a number."""
    share: float
    scale: Scale
    dense: float | None
    """Accuracy of dense training."""


def over_shares(groups: Mapping[str, Sequence[Sparse]]) -> list[Lines]:
    """Return accuracy, and bits of an entry, over the share of entries sent; a line joins those of a family."""
    made = []
    axis, bits_axis = Axis("entries sent", hundredths, 10), Axis("bits of an entry", digits, 2)
    note = f"{NOTE} A line: one compressor with several values of its number."
    for title, sparse in groups.items():
        accuracies, bits = dict[str, list[Point]](), dict[str, list[Point]]()
        for family, share, scale, _ in sorted(sparse, key=lambda each: each.share):
            if point := _at(scale, share):
                accuracies.setdefault(family, []).append(point)
                bits.setdefault(family, []).append(Point(share, scale.median(Record.bits_per_entry) or math.nan))
        ends = [bound(each.share for each in sparse) for bound in (min, max)]
        dense = [
            Series("dense", [Point(x, level) for x in ends], "reference") for *_, level in sparse[:1] if level
        ]
        if sum(map(len, accuracies.values())) > 2:
            lines = [Series(*item) for item in accuracies.items()]
            made.append(Lines(f"Accuracy over entries sent: {title}", axis, ACCURACY, [*lines, *dense], note))
            sizes = [Series(*item) for item in bits.items()]
            made.append(Lines(f"Bits of an entry over entries sent: {title}", axis, bits_axis, sizes, note))
    return made
