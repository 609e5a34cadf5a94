"""Rendering of runs in any format."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Final

from hpcdl.report.findings import findings
from hpcdl.report.pages import missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.trace.run import Run

FORMATS: Final = {
    **dict.fromkeys(("markdown", "md"), "markdown"),
    **{name: name for name in ("summary", "html", "csv", "json", "svg")},
    "tex": "latex",
}
"""Format, or ending of a file name, to the module of this folder that writes it."""


def render(runs: Sequence[Run], format: str) -> str:  # noqa: A002 - the contract's name
    """Return ``runs`` as text; ``format`` is one of :data:`FORMATS`. Raises as :func:`renderings`."""
    return renderings(runs, [format])[0]


def renderings(runs: Sequence[Run], formats: Sequence[str]) -> list[str]:
    """Return ``runs`` as one text per format; the findings in a run are computed once for all formats.

    ``svg:TITLE`` is the first figure whose title begins with TITLE.

    Raises ValueError for an unknown format or one without its libraries, a run that is given twice,
    hpcdl.analysis.points.AmbiguousCaseError for two cases that do not differ in any field, and
    hpcdl.trace.record.TraceError for a trace that is damaged.
    """
    named = [one.partition(":")[::2] for one in formats]
    for one, _ in named:
        if one not in FORMATS:
            near = difflib.get_close_matches(one, FORMATS, 1, 0)
            raise ValueError(f"no report format {one!r}; did you mean {near[0]!r}? known: {', '.join(FORMATS)}")
        if one in {"html", "svg"} and missing():
            raise ValueError(missing())
    found = findings(runs)
    return [
        str(importlib.import_module(f"hpcdl.report.{FORMATS[one]}").render(found, *filter(None, [title])))
        for one, title in named
    ]
