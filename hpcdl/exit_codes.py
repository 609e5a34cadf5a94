"""Exit codes of ``hpcdl``, on which scripts may rely, the error that ends a command, and its line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unicodedata import category

OK: Final = 0
FAILED: Final = 1
"""A case or a check failed, a case cannot run here, or a comparison found a regression."""
USAGE: Final = 2
"""The command line or the suite is wrong."""
INCONCLUSIVE: Final = 3
"""A comparison has too little data for a verdict, or the best trial of a grid is at an edge."""
INTERRUPTED: Final = 75
"""Interrupted; another job can continue with --resume."""
MISMATCH: Final = 78
"""The launcher does not fit the MPI library."""
MAX_MESSAGE: Final = 2000
"""Characters of an error message, at most."""


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


def visible(text: str) -> str:
    r"""Return ``text`` with each control or formatting character as its escape, such as ``\x1b`` or ``\n``.

    A terminal obeys some, line ends would begin lines of their own, and others reverse the order of letters.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or category(letter) == "Zs" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def message(error: object) -> str:
    """Return the text of an error as one line for a terminal, without its middle if it is very long."""
    text = visible(str(error))
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 4 :]}"
