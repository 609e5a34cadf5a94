"""Collectives that others measured on real clusters, beside predictions; only if a suite asks."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.network.clusters import DAY, Measurement, Pair, comparable, pairs, predicted
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.report.formats.cells import digits, listed, percent, plural, spread, whole
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column, Table, table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import link_title

PRESETS: Final = {"infiniband-hdr": "leonardo", "slingshot-11": "lumi"}
"""Presets from data sheets, and the machine with such ports."""
SIZES: Final = {"below 32 KiB": 1 << 15, "below 2 MiB": 1 << 21, "2 MiB and more": np.inf}
"""Classes of sizes of the whole vector, and their end (bytes)."""
MEDIAN, NINE_TENTHS, OF_FLOOR = 0.15, 0.4, 1.25
"""Largest errors of a good prediction: their median, or that multiple of the floor, and nine tenths of them."""
GOOD: Final = "a median error of at most 15 % or 1.25 times the floor, and nine tenths of the errors within 40 %"
NOTE: Final = (
    "Measured by others: medians of PICO (github.com/HLC-Lab/pico), one rank a node, host memory. Error: "
    "predicted / measured time - 1, without its sign; the network was fitted to all other jobs. Not predicted: "
    "jobs with another setting, costs that no other job has, and simulations that are too long. Floor: median "
    "difference of (measured / fitted time) between two jobs on different days, with equal algorithm and size. "
    f"Good: {GOOD}."
)


class Cell(NamedTuple):
    """Measured times of one machine, collective and class of sizes."""

    machine: str
    collective: str
    size: str
    measured: Sequence[Measurement]
    jobs: Sequence[Pair]
    """Pairs of jobs on different days."""

    @property
    def errors(self) -> list[float]:
        """Absolute relative errors of the times predicted without their jobs."""
        known = [(each.seconds, predicted()[each.key]) for each in self.measured if each.key in predicted()]
        errors = [abs(1e-9 * times.held_out_ns / seconds - 1) for seconds, times in known]
        return [error for error in errors if np.isfinite(error)]

    @property
    def floor(self) -> float:
        """Median difference of two jobs; not a number without two."""
        return quantiles([pair.difference for pair in self.jobs])[0]

    @property
    def is_good(self) -> bool:
        """True if the errors are within their limits."""
        median, most = quantiles(self.errors)
        return (median <= MEDIAN or median <= OF_FLOOR * self.floor) and most <= NINE_TENTHS


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the 90th percentile; not numbers without values."""
    low, high = np.percentile(values, [50, 90]).tolist() if len(values) else (np.nan, np.nan)
    return low, high


def with_scheme() -> list[Measurement]:
    """Return the measurements of algorithms that are not the library's choice."""
    return [each for each in comparable() if each.scheme != "native"]


def size_class(measured: Measurement) -> str:
    """Return the name of the class of a measurement's size."""
    return next(name for name, end in SIZES.items() if measured.message_bytes < end)


def machines() -> list[Cell]:
    """Return all measured times of each machine, the best predicted one first."""
    by = group_by_key((each.machine, each) for each in with_scheme())
    jobs = pairs()["any nodes"]
    found = [Cell(machine, "all", "all", some, jobs.get(machine, ())) for machine, some in by.items()]
    return sorted(found, key=lambda cell: quantiles(cell.errors))


def cells() -> list[Cell]:
    """Return the measured times by machine, collective and class of sizes."""

    def key(each: Measurement) -> tuple[str, str, str]:
        return each.machine, each.collective, size_class(each)

    by = group_by_key((key(each), each) for each in with_scheme())
    jobs = group_by_key((key(pair.first), pair) for some in pairs()["any nodes"].values() for pair in some)
    order = [*SIZES]
    keys = sorted(by, key=lambda at: (at[0], at[1], order.index(at[2])))
    return [Cell(*at, by[at], jobs.get(at, ())) for at in keys]


COLUMNS: Final[tuple[Column[Cell], ...]] = (
    Column("machine", lambda cell: cell.machine),
    Column("collective", lambda cell: cell.collective.replace("_", "-")),
    Column("size", lambda cell: cell.size),
    Column("times", lambda cell: str(len(cell.measured))),
    Column("not predicted", lambda cell: str(len(cell.measured) - len(cell.errors))),
    Column("median error", lambda cell: percent(quantiles(cell.errors)[0]), importance="answer"),
    Column("nine tenths within", lambda cell: percent(quantiles(cell.errors)[1]), importance="answer"),
    Column("floor", lambda cell: percent(cell.floor)),
    Column("good", lambda cell: ("yes" if cell.is_good else "no") if cell.errors else "-", importance="answer"),
)


def page(findings: Findings) -> Section:
    """Return the errors, the floor, and the ratios of presets."""
    if "clusters" not in findings.answered_by:
        return Section("Real clusters")
    tables = [
        table(COLUMNS, [*machines(), *cells()], "Error of predictions for a job that is left out", [NOTE]),
        floors(),
    ]
    found = ratios(findings)
    return Section("Real clusters", tables=[*tables, *([presets(found)] if found else [])])


def floors() -> Table:
    """Return the differences of each kind on each machine."""
    rows = [
        (machine, kind, str(len(by[machine])), *_counted(by[machine]), *map(percent, quantiles(differences)))
        for kind, by in pairs().items()
        for machine in sorted(by)
        for differences in [[pair.difference for pair in by[machine]]]
    ]
    header = ("machine", "compared", "pairs", "jobs", "days", "median difference", "nine tenths within")
    return Table("Floor: differences of measurements of the same thing", header, rows, answers=header[5:])


def _counted(some: Sequence[Pair]) -> tuple[str, str]:
    jobs = {each.job for pair in some for each in (pair.first, pair.other)}
    return str(len(jobs)), str(len({job[:DAY] for job in jobs}))


class Ratio(NamedTuple):
    """A simulated collective, and the same one of a job."""

    record: Record
    measured: Measurement

    @property
    def value(self) -> float:
        """Simulated / measured time."""
        return float(self.record.time_p50_seconds or np.nan) / self.measured.seconds


def ratios(findings: Findings) -> list[Ratio]:
    """Return the simulated collectives that have measured ones."""
    known: dict[object, list[Measurement]] = group_by_key(
        ((each.machine, each.ranks, each.collective, each.scheme, each.message_bytes), each)
        for each in comparable()
    )
    made = []
    for record in findings.records:
        machine = PRESETS.get(str(record.network), record.network)
        key = (machine, record.ranks, record.collective, str(record.aggregation), record.message_bytes)
        made += [Ratio(record, measured) for measured in known.get(key, ())]
    return made


def presets(found: Iterable[Ratio]) -> Table:
    """Return simulated / measured time by network, collective and class of sizes."""
    by = group_by_key(
        ((str(each.record.network), each.measured.collective, size_class(each.measured)), each) for each in found
    )
    rows = [
        (network, collective.replace("_", "-"), size, str(len(some)), *map(digits, ends))
        for (network, collective, size), some in by.items()
        for values in [[each.value for each in some]]
        for ends in [(float(np.median(values)), min(values), max(values))]
    ]
    header = ("network", "collective", "size", "pairs", "simulated / measured", "least", "most")
    return Table("Presets from data sheets", header, rows, answers=header[4:5])


def answer(findings: Findings) -> Answer | None:
    """Return the errors for jobs left out, beside the floor, then what is good, and the presets."""
    found = ratios(findings) if "clusters" in findings.answered_by else []
    if not found:
        return None
    by = machines()
    off = [error for cell in by for error in cell.errors]
    left = sum(len(cell.measured) for cell in by) - len(off)
    predictable = [cell for cell in cells() if cell.errors]
    good = sum(cell.is_good for cell in predictable)
    most = f"of at most {percent(quantiles(off)[1])}; {left} measured times have no prediction"
    errors_of = [f"{percent(quantiles(cell.errors)[0])} on {link_title(cell.machine)}" for cell in by]
    floor_of = [f"{percent(cell.floor)} on {link_title(cell.machine)}" for cell in by if cell.jobs]
    lines = [
        f"A network that is fitted to the other jobs predicts a job with a median error of {listed(errors_of)}.",
        f"Of {plural(len(off), 'prediction')} nine tenths have an error {most}.",
        f"Two jobs on different days differ in the median by {listed(floor_of)}.",
        f"In {good} of {len(predictable)} classes of collectives and sizes the predictions are good: {GOOD}.",
    ]
    for preset, machine in PRESETS.items():
        if known := [each.value for each in found if each.record.network == preset]:
            share = percent(float(np.median(known)))
            names = f"preset {link_title(preset)}", link_title(machine)
            lines.append(
                f"Simulated on the {names[0]} a collective takes, in the median, {share} of that on {names[1]}."
            )
    return Answer(lines[0], lines[1:], [each.record for each in found])


def charts(findings: Findings) -> list[Intervals]:
    """Return predicted / measured time of each job, with the spread over its times."""
    if "clusters" not in findings.answered_by:
        return []
    known = [each for each in with_scheme() if each.key in predicted()]
    jobs = group_by_key(((link_title(each.machine), each.job), each) for each in known)
    rows = list[tuple[str, Interval, str]]()
    for (machine, job), some in jobs.items():
        ratios_of = [1e-9 * predicted()[each.key].held_out_ns / each.seconds for each in some]
        low, middle, high = np.nanpercentile(ratios_of, [10, 50, 90]).tolist()
        label = f"{machine}, {job[:DAY].replace('_', '-')}, {spread([each.nodes for each in some], whole)} nodes"
        rows.append((machine, Interval(middle, low, high), label))
    _, values, labels = zip(*sorted(rows), strict=True)
    note = "Median of a job's times, predicted by a network that is fitted to the other jobs; bars: eight tenths."
    return [
        Intervals(
            "Predicted / measured time by job", labels, values, Axis("predicted / measured", base=2), 1.0, note
        )
    ]


SECTION: Final = Declaration(18, page, rows=60, answer=answer, figures=(charts,))
