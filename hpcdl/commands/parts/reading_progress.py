"""Progress while an archive without kept series is read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpcdl.run.progress import CLEAR

if TYPE_CHECKING:
    from typing import TextIO


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
