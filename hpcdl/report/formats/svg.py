"""One figure of a report as an SVG file."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from hpcdl.report.formats.drawing.figure import figure, standalone
from hpcdl.report.run.contents import illustrated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.report.run.findings import Findings


def render(findings: Sequence[Findings], title: str = "") -> str:
    """Return the first figure whose title begins with ``title``. Raises ValueError if there is none."""
    charts = [chart for run in findings for _, charts in illustrated(run)[1] for chart in charts]
    chosen = next((chart for chart in charts if chart.title.casefold().startswith(title.casefold())), None)
    if chosen is None:
        titles = [chart.title for chart in charts]
        near = difflib.get_close_matches(title, titles, 1, 0)
        raise ValueError(f"no figure {title!r}; did you mean {near[0]!r}?" if near else "the report has no figure")
    return standalone(figure(chosen, 1), chosen.title, chosen.note)
