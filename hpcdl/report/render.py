"""Rendering of runs in any format: pages, rows with one record per case and seed, and one figure or table.

``README.md`` in ``hpcdl/report`` explains the columns of the rows, ``schema.json`` has their types.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from hpcdl import extras
from hpcdl.analysis.run.disturbance import UNKNOWN, facts, slurm_job
from hpcdl.analysis.run.record import Record
from hpcdl.prediction.network_file import described
from hpcdl.prediction.predict import document
from hpcdl.report import contents
from hpcdl.report.formats import writers
from hpcdl.report.run.findings import NOTHING_STATED, Findings, Reference, findings
from hpcdl.report.run.warnings import not_run, unfinished
from hpcdl.trace.files import JsonObject, atomic_write
from hpcdl.trace.link_counters import recorded
from hpcdl.trace.run import Run
from hpcdl.trace.schema import PREDICTIONS

if TYPE_CHECKING:
    import pandas as pd

    from hpcdl.report.formats.document import Chart
    from hpcdl.report.formats.tables import Table


def missing() -> str:
    """Return in a line which library HTML and figures lack; empty if none."""
    return next((extras.missing(name) for name in ("jinja2", "matplotlib") if find_spec(name) is None), "")


def formats() -> list[str]:
    """Return the formats that can be written, as :data:`hpcdl.report.render.FORMATS` names them."""
    return ["md"] if missing() else ["md", "html"]


def next_steps(page: str, folder: Path, *, repeat: bool) -> str:
    """Return the last lines of a run: its page, and what to do next; ``repeat``: more launches would tell more."""
    compare = f"hpcdl compare {shlex.quote(str(folder))} --with LATER-RUN"
    more = "verdicts need several launches: add --launches 5"
    steps = [*([more] if repeat else []), f"changes since then: {compare}"]
    steps += ["more questions: hpcdl list suites; a suite of your own: hpcdl help suites"]
    return "\n".join([f"report: {page}", *(f"next: {step}" for step in steps)])


def save(folder: Path, texts: Sequence[str], predictions: JsonObject | None = None) -> str:
    """Write one text per format of :func:`formats`, and predictions; return a line with the page to open.

    Raises OSError.
    """
    made = {f"report.{form}": text for form, text in zip(formats(), texts, strict=True)}
    if predictions is not None:
        made[PREDICTIONS] = json.dumps(predictions, separators=(",", ":"))
    for name in ("report.html", PREDICTIONS):
        (folder / name).unlink(missing_ok=True)  # of an earlier part of the run
    for name, text in made.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    lacking, page = missing(), folder / f"report.{formats()[-1]}"
    return f"{page}" + (f" (no report.html: {lacking})" if lacking else "")


class Ended(NamedTuple):
    """What a run leaves when it ends."""

    summary: str
    page: str
    """Line with the page to open."""
    broken: Sequence[str]
    """As of :class:`Renderings`."""


def end(folder: Path, run: Run, *, predict: bool) -> Ended:
    """Write the report of a run into its folder, with predictions if asked. Raises OSError, and as renderings."""
    (computed,) = findings([run], Reference(predict=predict))
    (summary, *texts), broken = _renderings([computed], ["summary", *formats()])
    predictions = document(run, computed.predicted) if computed.predicted else None
    return Ended(summary, save(folder, texts, predictions), broken)


FORMATS: Final = ("markdown", "md", "summary", "html", "csv", "json", "tex")
"""Formats, or endings of a file name."""


def render(runs: Sequence[Run], format: str, reference: Reference = NOTHING_STATED) -> str:  # noqa: A002 - the contract's name
    """Return ``runs`` as text; ``format`` is one of :data:`FORMATS`. Raises as :func:`renderings`."""
    return renderings(runs, [format], reference).texts[0]


class Renderings(NamedTuple):
    """A report in several formats."""

    texts: list[str]
    broken: list[str]
    """A line for each section and figure that could not be made; all others are there."""


def renderings(runs: Sequence[Run], formats: Sequence[str], reference: Reference = NOTHING_STATED) -> Renderings:
    """Return ``runs`` as one text per format; the findings in a run are computed once for all formats.

    Raises ValueError for an unknown format or one without its libraries,
    hpcdl.analysis.run.pooling.AmbiguousCaseError for two cases that do not differ in any field, and
    hpcdl.trace.recorder.TraceError for a trace that is damaged.
    """
    for name in formats:
        if name not in FORMATS:
            near = difflib.get_close_matches(name, FORMATS, 1, 0)
            raise ValueError(f"no report format {name!r}; did you mean {near[0]!r}? known: {', '.join(FORMATS)}")
        if name == "html" and missing():
            raise ValueError(missing())
    return _renderings(findings(runs, reference), formats)


def _renderings(computed: Sequence[Findings], formats: Sequence[str]) -> Renderings:
    texts = [_written(computed, name) for name in formats]
    broken = [f"report: {name}: {error}" for run in computed for name, error in run.broken.items()]
    return Renderings(texts, broken)


def _written(runs: Sequence[Findings], name: str) -> str:
    match name:
        case "csv":
            return writers.csv_text(cases(runs))
        case "json":
            return writers.json_text(_json(runs))
        case "summary":
            return writers.plain(map(contents.summary, runs))
        case "tex":
            return writers.latex(map(contents.document, runs))
        case "html":
            from hpcdl.report.formats import html  # late: jinja2 and matplotlib may be missing

            pages = [contents.document(run, charts=True) for run in runs]
            return html.written(pages, runs[0].broken)
    return writers.markdown(map(contents.short, runs))


Row = dict[str, Any]


def cases(runs: Sequence[Findings]) -> list[Row]:
    """Return the rows of all runs; an unknown value is None."""
    return [
        _with_origin(run, record)
        for run in runs
        for record in (run.predicted.records if run.predicted else run.records)
    ]


def _with_origin(findings: Findings, record: Record) -> Row:
    """Return the row of a record, with when, where and with what software it was measured."""
    run = findings.run
    env = run.environment_with(record.environment_key)
    mpi, software, git = (facts(env, key) for key in ("mpi", "software", "git"))
    processes = 1 if record.network else record.ranks
    hosts = dict.fromkeys(str(rank.get("hostname")) for rank in (env.get("ranks") or ())[:processes])
    changed = "-dirty" if git.get("changed_files") else ""
    origin = {
        "date": env.get("date"),
        "hosts": " ".join(hosts),
        "mpi_library": mpi.get("library"),
        "mpi_version": mpi.get("version"),
        "hpcdl_version": software.get("hpcdl"),
        "commit": f"{git['commit']}{changed}" if git.get("commit") else None,
        "environment_key": env.get("key"),
        "slurm_job": slurm_job(env),
    }
    known = {key: None if value in ("", UNKNOWN) else value for key, value in origin.items()}
    row = record.row
    known = {key: row.get(key) or value for key, value in known.items()}
    return {**row, "run": findings.name, **known}


def frame(runs: Sequence[Run], *, all_columns: bool = False) -> pd.DataFrame:
    """Return one row per case and seed; without ``all_columns`` columns that have no value are left out."""
    import pandas as pd  # late: pages do not need it

    rows = pd.DataFrame(cases(findings(runs)))
    return rows if all_columns else rows.dropna(axis="columns", how="all")


def _json(runs: Sequence[Findings]) -> Row:
    """Return the document for JSON: SI units, null for unknown values.

    ``networks``: the network fitted to the collectives and exchanges of each run with enough of them, from which
    their ``predicted_seconds`` follow. ``runs``: of each whether every case of its suite has a result, and the
    cases that failed before they had one, or cannot be run where it was made; and the growth of counters of links,
    by host and device.
    """
    networks = [{"run": run.name, **described(run.predicted.estimate)} for run in runs if run.predicted]
    about_runs = [
        {
            "run": run.name,
            "complete": run.run.complete,
            "failed_cases": unfinished(run.run),
            "cases_not_run": not_run(run.run),
            "link_counters": recorded(run.run.environment),
        }
        for run in runs
    ]
    return {"cases": cases(runs), "networks": networks, "runs": about_runs}


FIGURES: Final = ("svg", "pdf", "png")
"""Endings of a file with one figure."""
TABLES: Final = {"md": writers.markdown_table, "tex": writers.latex_table, "csv": writers.table}
"""Writer of one table by the ending of its file; LaTeX can be input."""
Titled = TypeVar("Titled")


def figures(runs: Sequence[Run], reference: Reference = NOTHING_STATED) -> dict[str, Chart]:
    """Return the figures by title, those of the answer first. Raises ValueError without matplotlib."""
    if missing():
        raise ValueError(missing())
    pages = [contents.document(run, charts=True) for run in findings(runs, reference)]
    return {
        chart.title: chart
        for page in pages
        for section in sorted(page.sections, key=lambda section: section.title != page.main)
        for chart in section.charts
    }


def tables(runs: Sequence[Run], reference: Reference = NOTHING_STATED) -> dict[str, Table]:
    """Return the tables with all rows by title: that of the section, then their own."""
    sections = [section for run in findings(runs, reference) for section in contents.document(run).sections]
    return {
        ": ".join(filter(None, (section.title, table.title))): table.visible()
        for section in sections
        for table in section.tables
    }


def chosen(kind: str, titled: Mapping[str, Titled], title: str) -> Titled:
    """Return the first object whose title, or its part after a colon, begins with ``title``. Raises ValueError."""
    begin = title.casefold()
    for name, value in titled.items():
        if any(name.casefold()[place:].startswith(begin) for place in (0, name.find(": ") + 2)):
            return value
    if not titled:
        raise ValueError(f"the report has no {kind}")
    likeness = lambda name: difflib.SequenceMatcher(None, begin, name[: len(begin)].casefold()).ratio()
    near = max(titled, key=likeness)
    raise ValueError(f"no {kind} {title!r}; did you mean {near!r}? --{kind} list has all")
