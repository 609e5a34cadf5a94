"""What a report is made of, whatever it is rendered to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Table:
    """Cells are finished text; ``left`` leading columns are words, the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """Paragraphs, then points, then tables, then a text to be shown as it is."""

    title: str
    paragraphs: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    verbatim: str = ""


@dataclass(frozen=True)
class Document:
    """A report of one run."""

    title: str
    sections: list[Section]
