"""Limit the time that ``hpcdl run`` waits for the launcher that it started.

The watchdog of each rank ends a case that hangs. This module covers the rest: all ranks are stopped or have ended
and the launcher does not end, or MPI keeps a rank from ending.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PERIOD: Final = 0.25
"""Seconds between two checks."""
HEARTBEAT_TIMEOUT: Final = 900.0
"""Seconds without a heartbeat of rank 0, which has one every 15 s unless it writes a long trace."""
END_TIMEOUT: Final = 60.0
"""Seconds until the launcher must have ended, once rank 0 has ended or a case has failed."""
KILL_DELAY: Final = 5.0
"""Seconds between SIGTERM and SIGKILL."""


def supervise(
    launcher: subprocess.Popen[bytes],
    heartbeat: Callable[[], object],
    is_ending: Callable[[], bool],
    *,
    before_kill: Callable[[], object] = lambda: None,
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    end_timeout: float = END_TIMEOUT,
) -> None:
    """Wait for the launcher; kill it when rank 0 has no heartbeat, or when the launcher does not end in time.

    ``heartbeat`` returns a value that changes while rank 0 runs; ``is_ending`` returns True once the launcher
    should end.
    """
    quiet, seen = 0.0, heartbeat()
    while True:
        limit = end_timeout if is_ending() else heartbeat_timeout
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(min(PERIOD, limit))
            return
        # counted in periods: time in which this process itself was stopped does not count
        quiet += min(PERIOD, limit)
        now = heartbeat()
        if now != seen:
            quiet, seen = 0.0, now
        if quiet >= limit:
            print(f"hpcdl: no heartbeat of rank 0 for {quiet:.0f} s; killing {launcher.args!r}", file=sys.stderr)
            before_kill()
            _kill(launcher)
            return


def _kill(launcher: subprocess.Popen[bytes]) -> None:
    launcher.terminate()
    with suppress(subprocess.TimeoutExpired):
        launcher.wait(KILL_DELAY)
        return
    launcher.kill()
    launcher.wait()


def modified(*paths: Path) -> tuple[int, ...]:
    """Return the modification time of each file (ns); 0 for a file that does not exist."""
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times)
