"""The rank of a job whose process ended first.

A rank that is killed cannot record its failure, and within milliseconds the launcher ends the other ranks. Each
rank keeps a named pipe open. The kernel closes it along with the sockets by which the launcher notices the end, so
before the other ranks are killed; the end of the process comes later, often after theirs. An epoll instance gives
the pipes in the order in which they were closed.
"""

import os
import select
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from time import monotonic, sleep
from typing import Final, Self

from hpcdl.launch.process import status_folder

PREFIX: Final = "rank-"
"""Beginning of the name of a rank's pipe, before its number, ``@`` and its host."""

SEEN_LIMIT: Final = 2.0
"""Seconds that a rank waits until its process is watched."""

_open: Final[list[int]] = []
"""Pipe of this process, open until it ends."""


def announce(rank: int) -> None:
    """Open a pipe in the folder of the ``hpcdl run`` that started this rank, if it is on this host.

    Wait, at most SEEN_LIMIT, until that has taken the pipe: a rank may end soon after.
    """
    folder = status_folder()
    if folder is not None and folder.is_dir():
        pipe, limit = folder / f"{PREFIX}{rank}@{gethostname()}", monotonic() + SEEN_LIMIT
        with suppress(OSError):  # it only makes a message clearer
            hidden = pipe.with_name(f".{pipe.name}")
            os.mkfifo(hidden)
            _open.append(os.open(hidden, os.O_RDWR | os.O_NONBLOCK))  # a reader is not needed to open both ends
            hidden.rename(pipe)
            while pipe.exists() and monotonic() < limit:
                sleep(0.01)


class RankProcesses:
    """Processes of ``ranks`` ranks that have announced themselves in ``folder``."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder, self._number = folder, ranks
        self._ended = select.epoll()
        self._ranks: dict[int, int] = {}
        """Rank by descriptor of its pipe."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.close()
        for descriptor in self._ranks:
            os.close(descriptor)
        for path in self._folder.glob(f"{PREFIX}*"):
            path.unlink(missing_ok=True)

    def watch(self) -> int:
        """Watch the processes that were announced since the last call; return the number of all."""
        for path in self._folder.glob(f"{PREFIX}*@{gethostname()}"):
            with suppress(OSError):  # it is gone
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                path.unlink()
                if _is_closed(descriptor):
                    os.close(descriptor)
                    continue
                self._ranks[descriptor] = int(path.name.removeprefix(PREFIX).partition("@")[0])
                self._ended.register(descriptor, select.EPOLLHUP)
        return len(self._ranks)

    def forget(self) -> None:
        """Name no rank: the launcher is about to be killed, and its ranks with it."""
        self._number = len(self._ranks) + 1

    def first_ended(self) -> int | None:
        """Return the rank whose process ended first; None if unknown, as if not all ranks were watched."""
        if len(self._ranks) < self._number:
            return None
        events = self._ended.poll(0)
        return self._ranks[events[0][0]] if events else None


def _is_closed(descriptor: int) -> bool:
    """Return True if no process has the other end of a pipe open, into which nothing is written."""
    try:
        return os.read(descriptor, 1) == b""
    except BlockingIOError:
        return False
