"""Progress lines of a terminal: cases of a run, with rate and time left, and runs of an archive that are read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO


BAR: Final = 20
"""Characters of the progress bar."""
CLEAR: Final = "\r\x1b[K"
"""Clear the line: carriage return, erase to the end of the line (ECMA-48)."""
_UNITS: Final = (("h", 3600), ("min", 60), ("s", 1))


def progress_line(number: int, total: int, name: str, seconds: float, finished: int, columns: int = 80) -> str:
    """Return the line for case ``number`` of ``total``, which replaces the line before it.

    Rate and time left are those of the ``finished`` cases of this job, which took ``seconds``; none before the
    first one has finished. The line is shorter than ``columns``: a line that wraps cannot be replaced.
    """
    begin, rate = f"[{'#' * (BAR * number // total):.<{BAR}}] {number}/{total} ", ""
    if finished and seconds > 0:
        left = seconds / finished * (total - number)
        rate = f"  {60 * finished / seconds:.3g} cases/min, {_rounded(left)} left"
    room = max(0, columns - 1 - len(begin) - len(rate))
    shown = name if len(name) <= room else f"{name[: max(0, room - 3)]}..."
    return CLEAR + f"{begin}{shown}{rate}"[: columns - 1]


def _rounded(seconds: float) -> str:
    unit, size = next((unit for unit in _UNITS if seconds >= 2 * unit[1]), _UNITS[-1])
    return f"{seconds / size:.0f} {unit}"


class ReadingProgress:
    """Line on a terminal, or one line every ten seconds in a log, while runs without kept series are read."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.next = time.monotonic() + (1 if stream.isatty() else 10)

    def __call__(self, done: int, runs: int) -> None:
        """Write that ``done`` of ``runs`` are read."""
        terminal, now = self.stream.isatty(), time.monotonic()
        if now >= self.next:
            line = f"hpcdl: {done} of {runs} runs read; each is kept as run.series.json"
            self.stream.write(f"{CLEAR}{line}" if terminal else f"{line}\n")
            self.next = now + (0.2 if terminal else 10)
        if terminal and done == runs:
            self.stream.write(CLEAR)
        self.stream.flush()
