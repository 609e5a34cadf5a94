"""Report files of a run: ``report.md`` and, with its libraries, ``report.html``."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from hpcdl.trace import run_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIBRARIES: Final = ("jinja2", "matplotlib")
"""Needed for HTML."""


def missing() -> str:
    """Return in words which libraries HTML lacks; empty if none."""
    lacking = [name for name in LIBRARIES if find_spec(name) is None]
    return f"report.html needs {' and '.join(lacking)}: pip install 'hpcdl[report]'" if lacking else ""


def formats() -> list[str]:
    """Return the formats that can be written, as :data:`hpcdl.report.render.FORMATS` names them."""
    return ["md"] if missing() else ["md", "html"]


def next_steps(page: str, folder: Path, *, launches: int = 1) -> str:
    """Return the last lines of a run: its page, and what to do next."""
    compare = f"hpcdl compare {shlex.quote(str(folder))} --with LATER-RUN"
    more = "verdicts need several launches: add --launches 3"
    steps = [*([more] if launches == 1 else []), f"what has changed since: {compare}"]
    return "\n".join([f"report: {page}", *(f"next: {step}" for step in steps)])


def save(folder: Path, texts: Sequence[str]) -> str:
    """Write one text per format of :func:`formats`; return a line with the page to open. Raises OSError."""
    (folder / "report.html").unlink(missing_ok=True)  # of an earlier part of the run
    paths = [folder / f"report.{one}" for one in formats()]
    for path, text in zip(paths, texts, strict=True):
        run_files.write_text(path, text)
    lacking = missing()
    return f"{paths[-1]}" + (f" ({lacking})" if lacking else "")
