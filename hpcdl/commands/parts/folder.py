"""Find the suite and the run folder of ``hpcdl run``."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from hpcdl.suite import Suite


def load_suite(options: argparse.Namespace) -> Suite:
    """Read and check the suite. Raises UsageError."""
    from hpcdl import suite
    from hpcdl.launch.testbed_settings import emulated

    testbed = emulated()
    ranks = options.ranks or (testbed["hosts"] if testbed else None)
    if options.text is not None:
        return suite.parse(options.text, str(options.suite), options.overrides, options.case, ranks=ranks)
    return suite.load(options.suite, options.overrides, options.case, ranks=ranks)


def folder_of(options: argparse.Namespace, chosen: Suite) -> Path:
    """Return the run folder: that of -o, else with --resume the newest unfinished one, else a new one."""
    from hpcdl.suite import UsageError
    from hpcdl.trace.opening import newest_unfinished

    if options.folder is not None:
        return Path(options.folder)
    runs = Path("runs")
    if options.resume:
        unfinished = newest_unfinished(runs, chosen.name, options.launches)
        if unfinished is None:
            raise UsageError(
                f"--resume: {runs}/ holds no unfinished run of the suite {chosen.name!r}; name its folder "
                "with -o, or start a new run without --resume"
            )
        print(f"resuming the newest unfinished run: {unfinished}", flush=True)
        return unfinished
    name = f"{chosen.name}-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))  # several may start within a second
    return next(runs / name for name in names if not (runs / name).exists())


def writable(folder: Path, suite: str, *, resume: bool) -> Path:
    """Create the run folder.

    Raises UsageError if it cannot be written, or has symbolic links or files of another user. With --resume it
    may have a run of the same suite.
    """
    from hpcdl.suite import UsageError
    from hpcdl.trace import files

    try:
        folder.mkdir(parents=True, exist_ok=True)
        complaint = files.write_obstacle(folder)
    except OSError as error:
        raise UsageError(f"-o {folder}: cannot be written to: {error.strerror}") from None
    if complaint is not None:
        raise UsageError(f"-o {folder}: {complaint}")
    if (folder / "parts").exists():
        if not resume:
            raise UsageError(f"-o {folder}: holds a run already; add --resume or choose another folder")
        if (other := _suite_of(folder)) not in {None, suite}:
            raise UsageError(f"-o {folder}: holds a run of the suite {other!r}, and this is {suite!r}")
    return folder


def _suite_of(folder: Path) -> str | None:
    """Return the name of the suite of the finished cases; None if there are none."""
    from hpcdl.trace.recorder import TraceError
    from hpcdl.trace.schema import read

    for part in sorted((folder / "parts").glob("*.h5")):
        with suppress(TraceError):
            return str(read(part).described[0].get("suite"))
    return None
