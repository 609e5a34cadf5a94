"""Start the ranks of a suite from a shell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcdl.commands.parts.folder import folder_of, load_suite, writable

if TYPE_CHECKING:
    import argparse

    from hpcdl.suite import Suite


def ranks_to_start(options: argparse.Namespace, chosen: Suite) -> int:
    """Return the number of ranks to start. Raises UsageError if -n is too small for the cases, or too large."""
    from hpcdl.cases.spec.keys import MAX_RANKS
    from hpcdl.suite import UsageError

    needed = max(case.processes for case in chosen.cases)
    if options.ranks is None:
        return needed
    if options.ranks < 1:
        raise UsageError(f"-n {options.ranks}: must be at least 1")
    if options.ranks < needed:
        raise UsageError(
            f"-n {options.ranks}: the suite {chosen.name!r} has cases of {needed} ranks; "
            "use --case or --set case.ranks=..."
        )
    if options.ranks > MAX_RANKS:
        raise UsageError(f"-n {options.ranks}: must be at most {MAX_RANKS}")
    return int(options.ranks)


def check_memory(chosen: Suite, ranks: int) -> None:
    """Raise UsageError if all ranks start on this node and exceed its memory."""
    from hpcdl.launch.library import in_batch_job
    from hpcdl.run.memory import lack_of_memory
    from hpcdl.suite import UsageError

    if not in_batch_job(os.environ) and (line := lack_of_memory(chosen.cases, ["here"] * ranks)) is not None:
        raise UsageError(line)


def from_shell(options: argparse.Namespace, given: list[str]) -> int:
    """Check everything in this process, then start mpirun."""
    from hpcdl.launch.mpirun import NoLauncher
    from hpcdl.run.relaunch import run_cases
    from hpcdl.suite import UsageError

    chosen = load_suite(options)
    ranks = ranks_to_start(options, chosen)
    check_memory(chosen, ranks)
    folder = writable(folder_of(options, chosen), chosen.name, resume=options.resume)
    if options.folder is None:
        given = [*given, "-o", str(folder)]
    fault_tolerant = any(case.failure for case in chosen.cases)
    try:
        return run_cases(
            ranks,
            given,
            folder / "parts",
            cases=[case.digest for case in chosen.cases],
            fault_tolerant=fault_tolerant,
            typed=options.given,
        )
    except NoLauncher as error:
        raise UsageError(str(error)) from None
