"""One finished case, as rank 0 holds it before it is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.trace.recorder import Packed

Scalar = str | int | float | bool | None


@dataclass
class CaseRecord:
    """A case that has run once (one launch).

    ``case`` is flat: field name to str, int, float, bool or None. What the analysis reads is listed in
    ``hpcdl/trace/README.md``; other fields are kept too. ``ranks[r]`` is what rank r's
    :meth:`hpcdl.trace.recorder.Recorder.pack` returned.
    """

    case: dict[str, Scalar]
    ranks: list[Packed] = field(default_factory=list)


class TraceError(Exception):
    """A trace that cannot be read or written; the message is one line and names the file."""
