"""Declaration of a section, and the answer that it contributes to the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.report.charts import Chart
    from hpcdl.report.document import Section
    from hpcdl.report.findings import Findings

BEST: Final = 5
"""Methods that a table shows on a terminal."""


class Answer(NamedTuple):
    """Answer to the suite's question, as far as one section gives it."""

    headline: str
    """One sentence."""
    details: Sequence[str] = ()


@dataclass(frozen=True)
class Declaration:
    """A section; each file in ``hpcdl/report/sections`` declares one as ``SECTION``.

    A section that does not apply to a run returns a ``Section`` without content, and None instead of an answer.
    """

    order: int
    """Place on the page, ascending; answers have the same order."""
    page: Callable[[Findings], Section]
    """Content in a file."""
    terminal: Callable[[Findings], Section] | None = None
    """Content on a terminal; None: not shown there."""
    answer: Callable[[Findings], Answer | None] | None = None
    """Contribution to the verdict."""
    figures: Sequence[Callable[[Findings], Sequence[Chart]]] = ()
    """Charts of a page with figures, before the tables; each comes from a file in ``hpcdl/report/figures``."""
