"""Record of a finished case on rank 0, before it is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.trace.recorder import Packed

Scalar = str | int | float | bool | None


@dataclass
class CaseRecord:
    """One launch of a case.

    ``case`` maps field names to scalars. ``hpcdl/trace/README.md`` lists the fields that the analysis reads; other
    fields are kept. ``ranks[r]`` is the result of :meth:`hpcdl.trace.recorder.Recorder.pack` on rank r.
    """

    case: dict[str, Scalar]
    ranks: list[Packed] = field(default_factory=list)


class TraceError(Exception):
    """A trace cannot be read or written; the message is one line and names the file."""
