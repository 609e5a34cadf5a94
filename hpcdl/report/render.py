"""The one way into the renderers."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.trace.run import Run

FORMATS: Final = {"markdown": "markdown", "md": "markdown", "summary": "summary", "csv": "csv", "json": "json"}
"""Format, or what a file name ends in, to the module of this folder that writes it."""


def render(runs: Sequence[Run], format: str) -> str:  # noqa: A002 - the contract's name
    """``runs`` as text; ``format`` is one of :data:`FORMATS`.

    Raises ValueError for another format, hpcdl.analysis.scaling.AmbiguousCaseError for cases that nothing
    tells apart, and hpcdl.trace.record.TraceError for a trace that is damaged.
    """
    if format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, 1, 0)
        raise ValueError(f"no report format {format!r}; did you mean {near[0]!r}? known: {', '.join(FORMATS)}")
    return str(importlib.import_module(f"hpcdl.report.{FORMATS[format]}").render(runs))
