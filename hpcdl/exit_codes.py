"""What ``hpcdl`` ends with: a promise to scripts."""

from typing import Final

OK: Final = 0

FAILED: Final = 1
"""A check failed, or a case did."""

USAGE: Final = 2
"""Something that the user wrote cannot be done."""

INTERRUPTED: Final = 75
"""Another job can go on, with --resume."""

MISMATCH: Final = 78
"""The launcher does not fit the MPI library."""
