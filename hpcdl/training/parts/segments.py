"""Runs of the flat vectors whose sums go over the same ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def segments(parts: Iterable[tuple[slice, bool]], span: slice) -> list[tuple[slice, bool]]:
    """Return the runs of ``span`` that are divided, and those that are not, in order.

    ``parts`` are adjacent slices of the vector; True marks a divided one. Empty slices do not interrupt a run.
    """
    found: list[tuple[slice, bool]] = []
    for part, divided in parts:
        low, high = max(part.start, span.start), min(part.stop, span.stop)
        if low >= high:
            continue
        if found and found[-1][1] == divided:
            low = found.pop()[0].start
        found.append((slice(low, high), divided))
    return found
