"""Progress line of a terminal: cases done, rate of cases and time left."""

from __future__ import annotations

from typing import Final

BAR: Final = 30
"""Characters of the progress bar."""
CLEAR: Final = "\r\x1b[K"
"""Clear the line: carriage return, erase to the end of the line (ECMA-48)."""
_UNITS: Final = (("h", 3600), ("min", 60), ("s", 1))


def progress_line(number: int, total: int, name: str, seconds: float, finished: int) -> str:
    """Return the line for case ``number`` of ``total``, which replaces the line before it.

    Rate and time left are those of the ``finished`` cases of this job, which took ``seconds``; none before the
    first one has finished.
    """
    done = BAR * number // total
    line = f"{CLEAR}[{'#' * done:.<{BAR}}] {number}/{total} {name}"
    if not finished or seconds <= 0:
        return line
    left = seconds / finished * (total - number)
    return f"{line}  {60 * finished / seconds:.3g} cases/min, {_rounded(left)} left"


def _rounded(seconds: float) -> str:
    unit, size = next((one for one in _UNITS if seconds >= 2 * one[1]), _UNITS[-1])
    return f"{seconds / size:.0f} {unit}"
