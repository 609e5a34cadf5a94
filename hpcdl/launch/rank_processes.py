"""Processes of the ranks on the host of ``hpcdl run``, and the one of them that ended first.

A rank that is killed cannot record its failure, and the launcher ends the other ranks at once. The kernel keeps
the order: an epoll instance returns process descriptors in the order in which their processes ended.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from socket import gethostname
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, Self

from hpcdl.launch.status_files import status_folder

if TYPE_CHECKING:
    from pathlib import Path

PREFIX: Final = "rank-"
"""Beginning of the name of a file that contains the host and the process of a rank."""

SEEN_LIMIT: Final = 2.0
"""Seconds that a rank waits until its process is watched."""


def announce(rank: int) -> None:
    """Write this rank's process to the folder of the ``hpcdl run`` that started it, if it is on this host.

    Wait, at most SEEN_LIMIT, until that has taken the file: a rank may end soon after.
    """
    folder = status_folder()
    if folder is not None and folder.is_dir():
        file, limit = folder / f"{PREFIX}{rank}", monotonic() + SEEN_LIMIT
        with suppress(OSError):  # it only makes a message clearer
            file.write_text(f"{os.getpid()} {gethostname()}")
            while file.exists() and monotonic() < limit:
                sleep(0.01)


class RankProcesses:
    """Processes of ``ranks`` ranks that have announced themselves in ``folder``."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder, self._number = folder, ranks
        self._ended = select.epoll()
        self._ranks: dict[int, int] = {}
        """Rank by process descriptor."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.close()
        for descriptor in self._ranks:
            os.close(descriptor)
        for path in self._folder.glob(f"{PREFIX}*"):
            path.unlink(missing_ok=True)

    def watch(self) -> None:
        """Watch the processes that were announced since the last call."""
        for path in self._folder.glob(f"{PREFIX}*"):
            with suppress(OSError, ValueError):  # it has ended, or its number is not written yet
                process, host = path.read_text().split()
                if host != gethostname():
                    continue
                descriptor = os.pidfd_open(int(process))
                self._ranks[descriptor] = int(path.name.removeprefix(PREFIX))
                self._ended.register(descriptor, select.EPOLLIN)
                path.unlink()

    def forget(self) -> None:
        """Name no rank: the launcher is about to be killed, and its ranks with it."""
        self._number = len(self._ranks) + 1

    def first_ended(self) -> int | None:
        """Return the rank whose process ended first; None if unknown, as if not all ranks were watched."""
        if len(self._ranks) < self._number:
            return None
        events = self._ended.poll(0)
        return self._ranks[events[0][0]] if events else None
