"""Suites that come with hpcdl, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import hpcdl
from hpcdl.registry import nearest

FOLDER: Final = Path(hpcdl.__file__).parent / "suites"
"""In a checkout a link to the folder ``suites`` at its top; in an installed package a copy of its files."""


def suites() -> dict[str, Path]:
    """Return the suite files by name, in the order of their names."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def located(given: Path) -> Path:
    """Return the suite file that a user means by a path or by the name of a shipped suite; the path wins.

    Raises ValueError, with the nearest valid name, if there is neither.
    """
    known = suites()
    if given.is_file() or (given.exists() and str(given) not in known):
        return given
    if str(given) not in known:
        raise ValueError(f"{given}: no such suite file, and no suite of that name{nearest(given.stem, known)}")
    return known[str(given)]
