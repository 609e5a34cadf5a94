"""Page of an archive's history with figures: ``hpcdl history DIR -o history.html``."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.report.formats.cells import NONE, digits, seconds
from hpcdl.report.formats.charts import Axis, Lines, Point, Series
from hpcdl.report.formats.document import Document, Section, Table
from hpcdl.report.formats.html import Source, headed, written
from hpcdl.report.history import history as text
from hpcdl.report.history.history import day, label, signed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcdl.analysis.over_time.change_points import Calibration, Change
    from hpcdl.analysis.over_time.history import History
    from hpcdl.analysis.over_time.verdict import SuiteVerdict
    from hpcdl.analysis.statistics.estimates import Vector
    from hpcdl.report.formats.cells import Number


EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TICKS: Final = 4
"""Dates on an axis."""
FIRST: Final = 10
"""Runs that are the first of a series."""
SLOWEST: Final = 0.9
"""Quantile of the measures that represents the slow ones."""
NOTE: Final = "Dashed: the median between changes. Another environment begins a new line."


def of_all(verdict: SuiteVerdict) -> list[Lines]:
    """Return one chart of all measures, each relative to its first runs; none for a single run."""
    history = verdict.history
    if len(history.jobs) < 2 or not len(history.keys):
        return []
    ratios = np.array([_relative(row) for row in history.seconds])
    known = np.flatnonzero(np.isfinite(ratios).any(axis=0))
    x = _days(history)
    lines = [
        Series(name, [Point(x[run], float(np.nanquantile(ratios[:, run], share))) for run in known])
        for name, share in (("median measure", 0.5), (f"slowest {1 - SLOWEST:.0%}", SLOWEST))
    ]
    ideal = Series("first runs", [Point(x[known[0]], 1.0), Point(x[known[-1]], 1.0)], "reference")
    note = f"Time of each measure by the median of its first {FIRST} runs in the same environment."
    return [Lines("All measures", _dates(x), Axis("time by the first runs'", digits), [*lines, ideal], note)]


def _relative(values: Vector) -> Vector:
    first = values[np.isfinite(values)][:FIRST]
    return values / np.median(first) if len(first) else values


def of_changed(verdict: SuiteVerdict) -> list[Lines]:
    """Return one chart per measure with a change: open ones first, the largest first."""
    changes = _changes(verdict)
    new = {change.series for event in verdict.open_events for change in event.open}
    sizes = {row: max(abs(np.log(change.ratio.value)) for change in mine) for row, mine in changes.items()}
    ordered = sorted(sizes, key=lambda row: (row not in new, -sizes[row]))
    return [_chart(verdict, rows, changes) for rows in _measures(verdict.history, ordered)]


def of_others(verdict: SuiteVerdict) -> list[Lines]:
    """Return one chart per measure without a change, those with the newest run farthest from its level first."""
    history, changes = verdict.history, _changes(verdict)
    every = _measures(history, range(len(history.keys)))
    quiet = [rows for rows in every if changes.keys().isdisjoint(rows)]
    quiet.sort(key=lambda rows: -max(_departure(history, row) for row in rows))
    return [_chart(verdict, rows, changes) for rows in quiet]


def _departure(history: History, row: int) -> float:
    """Return how far the newest value is from the median, as a logarithm; 0 if the newest run has none."""
    values = history.logs[row]
    return float(abs(values[-1] - np.nanmedian(values))) if np.isfinite(values[-1]) else 0.0


def _changes(verdict: SuiteVerdict) -> dict[int, list[Change]]:
    changes: dict[int, list[Change]] = {}
    for event in verdict.findings.events:
        for change in event.changes:
            changes.setdefault(change.series, []).append(change)
    return {row: sorted(mine, key=lambda change: change.first) for row, mine in changes.items()}


def _measures(history: History, rows: Iterable[int]) -> list[list[int]]:
    """Return the series of the same case and measure in all environments, in the order of ``rows``."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for row, key in enumerate(history.keys):
        alike.setdefault(key[:3], []).append(row)
    return list({history.keys[row][:3]: alike[history.keys[row][:3]] for row in rows}.values())


def _chart(verdict: SuiteVerdict, rows: Sequence[int], changes: dict[int, list[Change]]) -> Lines:
    history = verdict.history
    x = _days(history)
    lines, levels = [], []
    for number, row in enumerate(rows, 1):
        values = history.seconds[row]
        runs = np.flatnonzero(np.isfinite(values))
        name = "time" if len(rows) == 1 else f"environment {number}"
        lines.append(Series(name, [Point(x[run], float(values[run])) for run in runs]))
        levels.append(
            Series("level", levels_of(values, [change.first for change in changes.get(row, ())], x), "reference")
        )
    text = "; ".join(_words(history, change) for row in rows for change in changes.get(row, ()))
    note = f"{text[0].upper()}{text[1:]}. {NOTE}" if text else NOTE
    return Lines(label(history, rows[0]), _dates(x), Axis("time", seconds), [*lines, *levels], note)


def levels_of(values: Vector, cuts: Sequence[int], x: Sequence[float]) -> list[Point]:
    """Return the medians between changes, as corners of a step function.

    ``values``: (runs,), NaN if missing; ``cuts``: first runs after the changes, ascending; ``x``: (runs,).
    """
    points = []
    for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        runs = begin + np.flatnonzero(np.isfinite(values[begin:end]))
        if not len(runs):  # a change before the first run in its environment
            continue
        level = float(np.median(values[runs]))
        points += [Point(x[runs[0]], level), Point(x[end if end < len(values) else runs[-1]], level)]
    return points


def _words(history: History, change: Change) -> str:
    slower = "slower" if change.ratio.value > 1 else "faster"
    bounds = f"{signed(change.ratio.low)} to {signed(change.ratio.high)}"
    return f"{slower} since {day(history.jobs[change.first])}: {signed(change.ratio.value)} ({bounds})"


def _days(history: History) -> list[float]:
    """Return the date of each job in days since 1970."""
    dates = [dt.datetime.fromisoformat(job.date) for job in history.jobs]
    return [(date - EPOCH) / dt.timedelta(days=1) for date in dates]


def _dates(x: Sequence[float]) -> Axis:
    """Return an axis of dates; of times of day if the runs are of a few days."""
    first, last = min(x), max(x)
    few = last - first < TICKS
    form = "%m-%d %H:%M" if few else "%Y-%m-%d"

    def shown(value: Number) -> str:
        return NONE if value is None else (EPOCH + dt.timedelta(days=value)).strftime(form)

    ticks = np.linspace(first, last, TICKS)
    return Axis("run", shown, ticks=(ticks if few else np.unique(ticks.round())).tolist())


def render(verdicts: Sequence[SuiteVerdict], calibrations: Mapping[str, Calibration]) -> str:
    """Return the page; several suites follow each other."""
    sources = [_source(verdict, calibrations.get(verdict.history.suite)) for verdict in verdicts]
    none = Section("Verdict", ["TOO FEW RUNS: none."])
    return written(sources or [Source(Document("hpcdl: history", [none]), [(none, [])], failed=False)])


def _source(found: SuiteVerdict, calibration: Calibration | None) -> Source:
    document = text.page(found, calibration)
    verdict, *others = document.sections
    contents = [
        (headed(verdict), of_all(found)),
        (Section("Measures that changed"), of_changed(found)),
        *((other, []) for other in others),
        (Section("Measures without a change"), of_others(found)),
        (Section("All measures", tables=[_table(found)]), []),
    ]
    return Source(
        document,
        [(section, charts) for section, charts in contents if section or charts],
        failed=found.verdict == "regressed",
    )


def _table(verdict: SuiteVerdict) -> Table:
    """Return one row per series: its runs, its newest time and its level since the last change."""
    history = verdict.history
    firsts: dict[int, list[int]] = {}
    for one in (change for event in verdict.findings.events for change in event.changes):
        firsts.setdefault(one.series, []).append(one.first)
    rows = []
    for row, values in enumerate(history.seconds):
        cuts = firsts.get(row, [])
        level = float(np.nanmedian(values[max(cuts, default=0) :]))
        newest = float(values[-1])
        known = np.isfinite(newest)
        rows.append(
            (
                text.label(history, row),
                str(int(np.isfinite(values).sum())),
                seconds(newest) if known else NONE,
                text.signed(newest / level) if known else NONE,
                seconds(level),
                str(len(cuts)) if cuts else NONE,
                text.day(history.jobs[max(cuts)]) if cuts else NONE,
            )
        )
    header = ("measure", "runs", "newest", "against level", "level", "changes", "last change")
    notes = ["Level: the median since the last change. Newest: a dash if the newest run lacks the measure."]
    return Table("", header, rows, notes=notes)
