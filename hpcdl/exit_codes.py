"""Exit codes of ``hpcdl``, on which scripts may rely, and the error that ends a command with one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OK: Final = 0

FAILED: Final = 1
"""A case or a check failed, a case cannot run here, or a comparison found a regression."""

USAGE: Final = 2
"""The command line or the suite is wrong."""

INCONCLUSIVE: Final = 3
"""A comparison has too little data for a verdict."""

INTERRUPTED: Final = 75
"""Interrupted; another job can continue with --resume."""

MISMATCH: Final = 78
"""The launcher does not fit the MPI library."""


class UsageError(Exception):
    """Something the user wrote cannot be run; one line that names file and key."""

    code = USAGE


@contextmanager
def refused(prefix: str = "") -> Iterator[None]:
    """Turn a ValueError of the body into a UsageError with ``prefix`` before its message."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from None
