"""Sleep that ends when a message comes from another host.

All that MPI has for a rank that waits is to look. But a library that speaks TCP hears of messages through event
queues of the kernel (epoll(7)), which belong to the process: whoever waits for one of them to fill takes nothing
out of it, and sleeps no longer than it has to. Linux only; elsewhere, and for messages through memory or past the
kernel, sleep lasts as long as was asked for.
"""

from __future__ import annotations

import select
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_OPEN: Final = Path("/proc/self/fd")
_QUEUE: Final = "anon_inode:[eventpoll]"
_NUMBERS: Final = 1024
"""select(2), which alone counts in microseconds, takes files of numbers below this."""


def event_queues() -> list[int]:
    """File numbers of this process's event queues, the MPI library's among them once it is initialised."""
    found = []
    with suppress(OSError):
        for entry in _OPEN.iterdir():
            with suppress(OSError):  # the one that listed the folder is gone
                if str(entry.readlink()) == _QUEUE and int(entry.name) < _NUMBERS:
                    found.append(int(entry.name))
    return found


class Arrivals:
    """Listens at ``queues``, file numbers as from :func:`event_queues`."""

    def __init__(self, queues: Iterable[int]) -> None:
        self._queues = list(queues)

    def sleep(self, seconds: float) -> None:
        """Sleep for so long, or until something is in one of the queues."""
        if self._queues:
            try:
                select.select(self._queues, (), (), seconds)
            except OSError:  # the library has closed one
                self._queues = []
            else:
                return
        sleep(seconds)
