"""Files by which ``hpcdl run`` and the ranks that it starts tell each other how they end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from hpcdl.exit_codes import INTERRUPTED

STATUS: Final = "HPCDL_STATUS_FILE"
"""File for rank 0's exit code; launchers print a page of text for any code except 0."""

RELAUNCH: Final = 76
"""Status in place of an exit code: a process failed as a case required, and the remaining cases need all ranks."""

STOP: Final = "stop"
"""File beside rank 0's exit code that asks the ranks to stop after the running case."""


def status_folder() -> Path | None:
    """Return the folder of the ``hpcdl run`` that started the ranks, on its host; None under another launcher."""
    place = os.environ.get(STATUS)
    return None if place is None else Path(place).parent


def stop_is_asked() -> bool:
    """Return True if the ``hpcdl run`` that started the ranks has received SIGUSR1."""
    folder = status_folder()
    return folder is not None and (folder / STOP).exists()


def heartbeat_file() -> Path | None:
    """Return the file that rank 0 touches regularly; None if another launcher started the ranks."""
    folder = status_folder()
    return None if folder is None else folder / "alive"


def write_status(code: int, rank: int) -> int:
    """Write rank 0's exit code to the status file; return the code that this process exits with."""
    place = os.environ.get(STATUS)
    if place is None:
        return INTERRUPTED if code == RELAUNCH else code
    if rank == 0:
        Path(place).write_text(str(code))
    return 0
