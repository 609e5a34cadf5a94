"""Collectives predicted for real clusters, and what others measured there; only if a suite asks."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.network.clusters import FITTED, Measurement, comparable, scatter
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.analysis.statistics.estimates import median_interval
from hpcdl.report.formats.cells import bounded, digits, percent, plural, seconds, volume, whole
from hpcdl.report.formats.document import Axis, Lines, Point, Section, Series
from hpcdl.report.formats.tables import Column, Table, table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import link_title

PRESETS: Final = {"infiniband-hdr": "leonardo", "slingshot-11": "lumi"}
"""Presets from data sheets, and the machine with such ports."""
MEDIAN, NINE_TENTHS, OF_FLOOR = 0.15, 0.4, 1.25
"""Largest errors of a good prediction: their median, or that multiple of the floor, and nine tenths of them."""
NOTE: Final = (
    "Measured by others: medians of PICO (github.com/HLC-Lab/pico). Error: predicted / measured time - 1, without "
    "its sign. Held out: numbers of nodes that the network was not fitted to. Floor: median difference between "
    "two jobs of one machine, algorithm and size. Good: median at most 15 % or 1.25 times the floor, nine tenths "
    "within 40 %."
)


class Cell(NamedTuple):
    """A simulated collective and a measured one."""

    record: Record
    measured: Measurement

    @property
    def ratio(self) -> float:
        """Predicted / measured time."""
        return float(self.record.time_p50_seconds or np.nan) / self.measured.seconds

    @property
    def held_out(self) -> bool:
        """True if the network is that of the machine, and was not fitted to so many nodes."""
        machine, nodes = self.measured.machine, self.measured.nodes
        return self.record.network == machine and nodes not in FITTED[machine]


class Group(NamedTuple):
    """Cells of a row."""

    machine: str
    collective: str
    which: str
    cells: Sequence[Cell]

    @property
    def errors(self) -> tuple[float, float]:
        """Median of the errors, and the one that nine tenths are within."""
        return quantiles([abs(cell.ratio - 1) for cell in self.cells])

    @property
    def floor(self) -> float:
        """Median difference of two jobs; not a number where none can be compared."""
        return quantiles(scatter()["two jobs"].get(self.machine, ()))[0]

    @property
    def is_good(self) -> bool:
        """True if the errors are within their limits."""
        median, most = self.errors
        return (median <= MEDIAN or median <= OF_FLOOR * self.floor) and most <= NINE_TENTHS


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the 90th percentile; not numbers without values."""
    low, high = np.percentile(values, [50, 90]).tolist() if len(values) else (np.nan, np.nan)
    return low, high


def cells(findings: Findings) -> list[Cell]:
    """Return the simulated collectives that have measured ones; none unless the suite asks."""
    if "clusters" not in findings.answered_by:
        return []
    known: dict[object, list[Measurement]] = group_by_key(
        ((each.machine, each.ranks, each.collective, each.scheme, each.message_bytes), each)
        for each in comparable()
    )
    made = []
    for record in findings.records:
        machine = PRESETS.get(str(record.network), record.network)
        key = (machine, record.ranks, record.collective, str(record.aggregation), record.message_bytes)
        made += [Cell(record, measured) for measured in known.get(key, ())]
    return made


def groups(found: Iterable[Cell]) -> list[Group]:
    """Return the cells by machine, collective, and whether they are held out."""
    which = {True: "held out", False: "fitted"}
    by = group_by_key(
        ((which[cell.held_out], cell.measured.machine, cell.measured.collective), cell) for cell in found
    )
    return [Group(machine, name, which, by[which, machine, name]) for which, machine, name in sorted(by)][::-1]


COLUMNS: Final[tuple[Column[Group], ...]] = (
    Column("machine", lambda group: group.machine),
    Column("collective", lambda group: group.collective.replace("_", "-")),
    Column("nodes", lambda group: group.which),
    Column("pairs", lambda group: str(len(group.cells))),
    Column("median error", lambda group: percent(group.errors[0]), importance="answer"),
    Column("nine tenths within", lambda group: percent(group.errors[1]), importance="answer"),
    Column("floor", lambda group: percent(group.floor)),
    Column("good", lambda group: "yes" if group.is_good else "no", importance="answer"),
)


def page(findings: Findings) -> Section:
    """Return the errors, the floor, the ratios of presets, and the ratios by algorithm and size."""
    found = cells(findings)
    if not found:
        return Section("Real clusters")
    own = [cell for cell in found if cell.record.network == cell.measured.machine]
    presets = [cell for cell in found if cell.record.network != cell.measured.machine]
    tables = [table(COLUMNS, groups(own), "Error of predictions", [NOTE])] if own else []
    tables.append(floors())
    for title, some in (("Presets from data sheets", presets), ("By algorithm and size", own)):
        tables += [ratios(some, title)] if some else []
    return Section("Real clusters", tables=tables)


def floors() -> Table:
    """Return the differences of each kind on each machine."""
    rows = [
        (machine, kind, str(len(by[machine])), *map(percent, quantiles(by[machine])))
        for kind, by in scatter().items()
        for machine in sorted(by)
    ]
    header = ("machine", "compared", "pairs", "median difference", "nine tenths within")
    return Table("Floor: differences of measurements of the same thing", header, rows, answers=header[3:])


def ratios(found: Iterable[Cell], title: str) -> Table:
    """Return predicted / measured by network, collective, algorithm and size, the farthest from 1 first."""
    columns = ("network", "collective", "aggregation", "message_bytes")
    by = group_by_key((tuple(map(cell.record.stated, columns)), cell.ratio) for cell in found)
    ordered = sorted(by.items(), key=lambda item: -abs(np.log(np.median(item[1]))))
    rows = [
        (
            str(network),
            collective.replace("_", "-"),
            str(algorithm),
            volume(size),
            str(len(each)),
            *map(digits, ends),
        )
        for (network, collective, algorithm, size), each in ordered
        for ends in [(float(np.median(each)), min(each), max(each))]
    ]
    header = ("network", "collective", "algorithm", "size", "pairs", "predicted / measured", "least", "most")
    return Table(title, header, rows, answers=header[5:6])


def answer(findings: Findings) -> Answer | None:
    """Return the error of held-out predictions beside the floor, then machines, collectives and presets."""
    found = cells(findings)
    held = [cell for cell in found if cell.held_out]
    lines = []
    if held:
        errors = [abs(cell.ratio - 1) for cell in held]
        floor = quantiles([each for by in scatter()["two jobs"].values() for each in by])[0]
        machines = plural(len({cell.measured.machine for cell in held}), "real cluster")
        error = bounded(*median_interval(errors), percent)
        off = f"predictions for held-out numbers of nodes are off by {error} in the median"
        limits = [group for group in groups(held) if group.is_good]
        good = [f"{group.collective.replace('_', '-')} on {link_title(group.machine)}" for group in limits]
        lines = [
            f"On {machines} {off}; {len(good)} of {len(groups(held))} collectives are within the limits.",
            f"Nine tenths of {plural(len(held), 'prediction')} are within {percent(quantiles(errors)[1])}.",
            f"Two jobs with equal nodes, algorithm and size differ by {percent(floor)} in the median.",
            f"Within the limits: {', '.join(good) or 'none'}.",
        ]
    for preset, machine in PRESETS.items():
        known = [cell.ratio for cell in found if cell.record.network == preset]
        if known:
            share = percent(float(np.median(known)))
            names = f"preset {link_title(preset)}", link_title(machine)
            lines.append(f"The median time of the {names[0]} is {share} of the time measured on {names[1]}.")
    return Answer(lines[0], lines[1:], [cell.record for cell in held or found]) if lines else None


def charts(findings: Findings) -> list[Lines]:
    """Return for each machine the allreduce of the size with most cells over nodes, measured and predicted."""
    made, found = [], [cell for cell in cells(findings) if cell.record.network == cell.measured.machine]
    for machine in dict.fromkeys(cell.measured.machine for cell in found):
        some = [c for c in found if c.measured.machine == machine and c.measured.collective == "allreduce"]
        sizes = [cell.measured.message_bytes for cell in some]
        size = max(sizes, key=lambda each: (sizes.count(each), each), default=0)
        points: dict[str, dict[int, Point]] = {}
        for cell in (cell for cell in some if cell.measured.message_bytes == size):
            name, at = str(cell.record.aggregation), cell.measured
            points.setdefault(f"{name}, measured", {})[at.nodes] = Point(at.nodes, at.seconds, at.low, at.high)
            time = cell.ratio * at.seconds
            points.setdefault(f"{name}, predicted", {})[at.nodes] = Point(at.nodes, time)
        series = [Series(name, [*by.values()]) for name, by in points.items()]
        title = f"Allreduce of {volume(size)} on {link_title(machine)}"
        axes = Axis("nodes", whole, 2), Axis("time", seconds, 10)
        made += [Lines(title, *axes, series, "Bars: quartiles of the repetitions of a job.")] if series else []
    return made


SECTION: Final = Declaration(18, page, rows=40, answer=answer, figures=(charts,))
