"""Histogram of the staleness of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.record_fields import configuration
from hpcdl.report.charts import Axis, Columns
from hpcdl.report.formatting import Number, percent, plural
from hpcdl.report.grouping import rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.analysis.record_fields import Key
    from hpcdl.report.findings import Findings

MOST: Final = 12
"""Values of staleness with columns of their own."""


def charts(found: Findings) -> list[Columns]:
    """Return one chart per problem in which gradients were applied to newer parameters."""
    shares: dict[Key, list[tuple[float, ...]]] = {}
    for fields, one in found.staleness:
        shares.setdefault(_key(fields), []).append(one.shares)
    made = []
    for methods in found.problems:
        series = {}
        for row in rows(methods):
            keys = dict.fromkeys(_key(record) for record in row.scale.records)
            own = [one for key in keys for one in shares.get(key, [])]
            if own:
                series[f"{row.name}, {plural(row.scale['ranks'], 'rank')}"] = _mean(own)
        if series:
            title = found.settings.title(methods[0].scales[0].records[0])
            made.append(_chart(series, title))
    return made


def _key(fields: Mapping[str, Any]) -> Key:
    return (configuration(fields), fields.get("ranks"))


def _mean(own: list[tuple[float, ...]]) -> list[float]:
    most = max(map(len, own))
    return [sum(one[age] for one in own if age < len(one)) / len(own) for age in range(most)]


def _chart(series: Mapping[str, list[float]], title: str) -> Columns:
    most = max(map(len, series.values()))
    shown = min(most, MOST)
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
