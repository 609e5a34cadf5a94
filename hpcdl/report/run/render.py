"""Rendering of runs in any format."""

from __future__ import annotations

import difflib
import importlib
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hpcdl.report.run.findings import findings
from hpcdl.trace.files import atomic_write
from hpcdl.trace.run import Run

LIBRARIES: Final = ("jinja2", "matplotlib")
"""Needed for HTML."""


def missing() -> str:
    """Return in words which libraries HTML lacks; empty if none."""
    lacking = [name for name in LIBRARIES if find_spec(name) is None]
    return f"report.html needs {' and '.join(lacking)}: pip install 'hpcdl[report]'" if lacking else ""


def formats() -> list[str]:
    """Return the formats that can be written, as :data:`hpcdl.report.run.render.FORMATS` names them."""
    return ["md"] if missing() else ["md", "html"]


def next_steps(page: str, folder: Path, *, launches: int = 1) -> str:
    """Return the last lines of a run: its page, and what to do next."""
    compare = f"hpcdl compare {shlex.quote(str(folder))} --with LATER-RUN"
    more = "verdicts need several launches: add --launches 3"
    steps = [*([more] if launches == 1 else []), f"what has changed since: {compare}"]
    steps += ["more questions: hpcdl list suites; a suite of your own: suites/README.md"]
    return "\n".join([f"report: {page}", *(f"next: {step}" for step in steps)])


def save(folder: Path, texts: Sequence[str]) -> str:
    """Write one text per format of :func:`formats`; return a line with the page to open. Raises OSError."""
    (folder / "report.html").unlink(missing_ok=True)  # of an earlier part of the run
    paths = [folder / f"report.{form}" for form in formats()]
    for path, text in zip(paths, texts, strict=True):
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    lacking = missing()
    return f"{paths[-1]}" + (f" ({lacking})" if lacking else "")


FORMATS: Final = {
    **dict.fromkeys(("markdown", "md"), "markdown.render"),
    **{name: f"{name}.render" for name in ("summary", "html")},
    **{name: f"records.{name}_text" for name in ("csv", "json")},
    "svg": "html.svg",
    "tex": "latex.render",
}
"""Module of ``hpcdl.report.formats`` and its function, by format or ending of a file name."""


def render(runs: Sequence[Run], format: str) -> str:  # noqa: A002 - the contract's name
    """Return ``runs`` as text; ``format`` is one of :data:`FORMATS`. Raises as :func:`renderings`."""
    return renderings(runs, [format])[0]


def renderings(runs: Sequence[Run], formats: Sequence[str]) -> list[str]:
    """Return ``runs`` as one text per format; the findings in a run are computed once for all formats.

    ``svg:TITLE`` is the first figure whose title begins with TITLE.

    Raises ValueError for an unknown format or one without its libraries, a run that is given twice,
    hpcdl.analysis.run.points.AmbiguousCaseError for two cases that do not differ in any field, and
    hpcdl.trace.recorder.TraceError for a trace that is damaged.
    """
    named = [name.partition(":")[::2] for name in formats]
    for name, _ in named:
        if name not in FORMATS:
            near = difflib.get_close_matches(name, FORMATS, 1, 0)
            raise ValueError(f"no report format {name!r}; did you mean {near[0]!r}? known: {', '.join(FORMATS)}")
        if name in {"html", "svg"} and missing():
            raise ValueError(missing())
    computed = findings(runs)
    texts = []
    for name, title in named:
        module, _, function = FORMATS[name].partition(".")
        write = getattr(importlib.import_module(f"hpcdl.report.formats.{module}"), function)
        texts.append(str(write(computed, *filter(None, [title]))))
    return texts
