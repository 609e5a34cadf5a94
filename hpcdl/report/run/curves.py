"""Charts of lines over a measured quantity, and of accuracies over what they cost."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import NONE, Number, seconds, volume
from hpcdl.report.formats.document import Axis, Lines, Point, Series
from hpcdl.report.run.grouping import Row, Scale
from hpcdl.report.run.literature import legend
from hpcdl.trace.quantity import Quantity

HIGHEST: Final = -1
LOWEST: Final = 1


def curves(
    title: str,
    axes: tuple[Axis, Axis],
    lines: Mapping[str, Sequence[Point]],
    note: str,
    *,
    best: Literal[1, -1] = HIGHEST,
    least: int = 2,
    limits: Collection[str] = (),
    references: Mapping[str, Callable[[float], float]] | None = None,
) -> list[Lines]:
    """Return a chart of the lines with ``least`` points or more, and ticks at these; none without any.

    Lines that go farthest come first, then those with the best value at their end: the highest or the lowest. The
    MPI library's own scheme precedes all. ``limits``: lines that bound the others; ``references``: lines that were
    not measured, straight on these axes.
    """
    series = [
        Series(name, sorted(points), "baseline" if name in limits else "method")
        for name, points in lines.items()
        if len({point.x for point in points}) >= least
    ]
    series.sort(key=lambda line: (line.name != "native", -line.points[-1].x, best * line.points[-1].y))
    places = sorted({point.x for line in series for point in line.points})
    for name, value in (references or {}).items() if series else ():
        series.append(Series(name, [Point(x, value(x)) for x in (places[0], places[-1])], "reference"))
    across = replace(axes[0], ticks=places if least > 1 else ())
    return [Lines(title, across, axes[1], series, note)] if series else []


def hundredths(share: Number) -> str:
    """Return a share in percent with up to four digits, so that near ones are told apart."""
    return NONE if share is None else f"{100 * share:.4g} %"


ACCURACY: Final = Axis("final accuracy", hundredths)
ACCURACY_NOTE: Final = "Medians over seeds, bars are the range of accuracies."
FRONT_NOTE: Final = f"{ACCURACY_NOTE} In colour, and first: methods that no other method beats in both numbers."
Cost = tuple[str, Quantity[Any], Axis]
"""What a method costs: in words, as a quantity, as the axis of a chart."""
STEP: Final[Cost] = ("step", Record.step_seconds, Axis("step", seconds, 10))
BYTES: Final[Cost] = ("bytes sent", Record.bytes_sent_per_rank, Axis("bytes per rank and step", volume, 10))


def over_cost(groups: Iterable[tuple[str, str, Sequence[Row]]], cost: Cost) -> list[Lines]:
    """Return by title the accuracy of methods over a cost, first those that no other beats in both.

    ``groups``: title, beginning of the methods' names, and methods.
    """
    words, quantity, axis = cost
    titled, made = dict[str, dict[str, Point]](), list[Lines]()
    for title, setting, methods in groups:
        names = legend([(row.name, row.scale.record) for row in methods])
        known = titled.setdefault(title, {})
        for name, row in zip(names, methods, strict=True):
            for point in accuracy_at(row.scale, row.scale.median(quantity)):
                known[", ".join(filter(None, (setting, name)))] = point
    for title, known in titled.items():
        ordered = sorted(known, key=lambda name: (known[name].x, -known[name].y))
        highest = np.maximum.accumulate([-1.0, *(known[name].y for name in ordered)])
        beaten = {name: known[name].y <= before for name, before in zip(ordered, highest, strict=False)}
        series = [Series(name, [known[name]]) for name in sorted(known, key=lambda n: (beaten[n], -known[n].y))]
        if len(series) > 2:
            made.append(Lines(f"Accuracy over {words}: {title}", axis, ACCURACY, series, FRONT_NOTE))
    return made


def accuracy_at(scale: Scale, place: float | None) -> list[Point]:
    """Return the median of the final accuracies with their range at a place of a chart; nothing if unknown."""
    values = scale.values(Record.final_accuracy)
    return [Point(place, float(np.median(values)), min(values), max(values))] if values and place else []
