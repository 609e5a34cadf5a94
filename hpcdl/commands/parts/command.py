"""Declaration of a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


@dataclass(frozen=True)
class Command:
    """Declaration of a command: ``COMMAND`` of a file in ``hpcdl/commands``, which has the command's name."""

    order: int
    """Position in ``hpcdl --help``; lower numbers come first."""
    summary: str
    """Line in ``hpcdl --help``."""
    description: str
    """First paragraph of the command's own ``--help``."""
    arguments: Callable[[argparse.ArgumentParser], None]
    """Declare arguments and options."""
    execute: Callable[[argparse.Namespace], int]
    """Run the command with its options; return the exit code."""
    example: str
    """Last line of the command's own ``--help``."""
