"""Residual of compressed gradients over the steps of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.record_fields import configuration
from hpcdl.report.charts import Axis, Lines, Point, Series
from hpcdl.report.figures.speedup import whole
from hpcdl.report.formatting import digits, plural
from hpcdl.report.grouping import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.launches import Columns
    from hpcdl.analysis.record_fields import Key
    from hpcdl.report.findings import Findings

NOTE: Final = (
    "Norm of what a rank has not sent, by that of its gradient in the same step; root mean squares over ranks. "
    "Medians over seeds and launches, bars are their range."
)


def charts(found: Findings) -> list[Lines]:
    """Return one chart per problem with residuals."""
    curves: dict[Key, list[Columns]] = {}
    for one in found.launches:
        if len(one.residuals.get("step", ())) > 1:
            curves.setdefault(_key(one.fields), []).append(one.residuals)
    made = []
    for methods in found.problems:
        series = []
        for row in rows(methods):
            keys = dict.fromkeys(_key(record) for record in row.scale.records)
            own = [one for key in keys for one in curves.get(key, [])]
            if points := _points(own):
                series.append(Series(f"{row.name}, {plural(row.scale['ranks'], 'rank')}", points))
        if series:
            title = found.settings.title(methods[0].scales[0].records[0])
            series.sort(key=lambda one: -one.points[-1].y)
            made.append(
                Lines(
                    f"Residual by gradient{': ' if title else ''}{title}",
                    Axis("step", whole),
                    Axis("residual / gradient", digits),
                    series,
                    NOTE,
                )
            )
    return made


def _key(fields: Mapping[str, Any]) -> Key:
    return (configuration(fields), fields.get("ranks"))


def _points(own: Sequence[Columns]) -> list[Point]:
    """Return the median of each step that all launches have, with a gradient that is not zero."""
    if not own:
        return []
    common = set.intersection(*(set(one["step"][one["gradient_norm"] > 0].tolist()) for one in own))
    found = []
    for step in sorted(common):
        places = [int(np.searchsorted(one["step"], step)) for one in own]
        values = [
            float(one["residual_norm"][at] / one["gradient_norm"][at]) for one, at in zip(own, places, strict=True)
        ]
        bounds = (min(values), max(values)) if len(values) > 1 else ()
        found.append(Point(step, float(np.median(values)), *bounds))
    return found
