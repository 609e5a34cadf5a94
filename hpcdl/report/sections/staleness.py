"""Staleness of gradients: updates between the reading of the parameters and the use of their gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.run.record_fields import configuration
from hpcdl.report.formats.cells import NONE, Number, digits, percent, plural
from hpcdl.report.formats.charts import Axis, Columns
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import EVIDENCE, Declaration
from hpcdl.report.run.grouping import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.run.outcome import Staleness
    from hpcdl.analysis.run.record_fields import Key
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Row


MAX_ROWS: Final = 12
"""Values of staleness with columns of their own."""


def staleness_histogram(findings: Findings) -> list[Columns]:
    """Return one chart per problem in which gradients were applied to newer parameters."""
    shares: dict[Key, list[tuple[float, ...]]] = {}
    for fields, stale in findings.staleness:
        shares.setdefault(_histogram_key(fields), []).append(stale.shares)
    made = []
    for methods in findings.problems:
        series = {}
        for row in rows(methods):
            keys = dict.fromkeys(_histogram_key(record) for record in row.scale.records)
            own = [stale for key in keys for stale in shares.get(key, [])]
            if own:
                series[f"{row.name}, {plural(row.scale['ranks'], 'rank')}"] = _mean(own)
        if series:
            title = findings.settings.title(methods[0].scales[0].records[0])
            made.append(_chart(series, title))
    return made


def _histogram_key(fields: Mapping[str, Any]) -> Key:
    return (configuration(fields), fields.get("ranks"))


def _mean(own: list[tuple[float, ...]]) -> list[float]:
    most = max(map(len, own))
    return [sum(stale[age] for stale in own if age < len(stale)) / len(own) for age in range(most)]


def _chart(series: Mapping[str, list[float]], title: str) -> Columns:
    most = max(map(len, series.values()))
    shown = min(most, MAX_ROWS)
    cut = {
        name: [*(values[:shown] + [0.0] * (shown - len(values))), *([sum(values[shown:])] if most > shown else [])]
        for name, values in series.items()
    }
    categories = [*map(str, range(shown)), *([f"{shown}+"] if most > shown else [])]
    return Columns(
        f"Staleness of gradients{': ' if title else ''}{title}",
        "staleness",
        categories,
        cut,
        Axis("share of gradients", _share),
        "Staleness: updates between the reading of the parameters and the use of their gradient.",
    )


def _share(value: Number) -> str:
    return percent(value, 1)


SHOWN: Final = 4
"""Staleness values with one column each: 0 to 3."""
SLOW: Final = 1.5
"""A worker of which others make so many times the gradients is slow."""


def page(findings: Findings) -> Section:
    """Return one table per problem in which gradients were applied to newer parameters."""
    tables = []
    for methods in findings.problems:
        cells, notes = [], []
        for row in sorted(rows(methods), key=lambda row: -(row.scale.median("staleness_mean") or 0.0)):
            keys = {_key(record) for record in row.scale.records}
            own = [stale for fields, stale in findings.staleness if _key(fields) in keys]
            if own:
                cells.append(_staleness(row, own))
                notes += _slow_worker(row, own[0])
        if cells:
            header = (
                *("method", "ranks", "workers", "gradients an update", "discarded", "mean", "expected", "max"),
                *(f"at {age}" for age in range(SHOWN)),
                f"at {SHOWN} or more",
            )
            title = findings.settings.title(methods[0].scales[0].records[0])
            tables.append(Table(title, header, cells, 1, notes, "highest mean first").without_empty())
    note = (
        "Staleness of a gradient: updates that the parameters saw from when they were fetched for it until it was "
        "applied. Expected: the long-run mean if workers never wait and fetch with every push, which is "
        "(workers - 1) / gradients an update, and with overlap, where parameters are used a step after they were "
        "fetched, (2 workers - 1) / gradients an update. Shares are of the gradients applied within the measured "
        "span, the maximum is of the whole training. Discarded: share of the gradients that no update used."
    )
    return Section("Staleness", [note] if tables else [], tables=tables, per="setting")


def _key(fields: Mapping[str, Any]) -> Key:
    return (configuration(fields), fields.get("ranks"), fields.get("seed"))


def _staleness(row: Row, own: Sequence[Staleness]) -> tuple[str, ...]:
    scale = row.scale
    shares = [
        sum(stale.shares[age] for stale in own if age < len(stale.shares)) / len(own) for age in range(SHOWN)
    ]
    return (
        row.name,
        str(scale["ranks"]),
        str(scale["workers"] or NONE),
        digits(scale.median("gradients_per_update")),
        percent(scale.median("discarded_share"), 1),
        digits(scale.median("staleness_mean")),
        digits(scale.median("staleness_expected")),
        f"{scale.high('staleness_max') or 0:.0f}",
        *(percent(share, 1) for share in (*shares, max(0.0, 1 - sum(shares)))),
    )


def _slow_worker(row: Row, staleness: Staleness) -> list[str]:
    """Return a line about the slowest worker, if it is much slower than the others."""
    rank, (least, old) = min(staleness.by_worker.items(), key=lambda worker: worker[1][0])
    others = [its for worker, its in staleness.by_worker.items() if worker != rank]
    made = sum(count for count, _ in others)
    if not others or made < SLOW * least * len(others):
        return []
    theirs = sum(count * mean for count, mean in others) / made
    line = (
        f"{row.name} at {row.scale['ranks']} ranks: worker {rank} made {percent(least, least + made)} of the "
        f"gradients, of mean staleness {digits(old)}; those of the others had {digits(theirs)}."
    )
    return [line]


SECTION = Declaration(100, page, rows=EVIDENCE, figures=(staleness_histogram,))
