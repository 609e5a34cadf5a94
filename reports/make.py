"""Measure what the reports show, and render their pages: the Python of .venv runs it.

    python reports/make.py measure RUNS [NAME ...]     run the suites; one that RUNS has is not run again
    python reports/make.py render                      write all pages again, of the data that are here
    python reports/make.py agree DATA                  count times that agree with those of another measurement

``reports.toml`` lists the reports. A measurement leaves ``data/NAME.json.gz``, the records of its runs, or
``data/NAME.txt``, what a program printed, and an entry of ``data/made.json``: minutes, commit, machine and date; a
``note`` that somebody adds there, on how these data came about, stands on the page until the next measurement. A
page is made of these alone, so that a new version of hpcdl renders all of them without a new measurement.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.report.formats.document import Document, Section, Table
    from hpcdl.report.run.findings import Findings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DATA = HERE / "data"
MADE = DATA / "made.json"
AGREEMENT = DATA / "agreement.md"
"""Table that ``agree`` leaves."""
TIMES = (
    ("step_seconds", "step_seconds_low", "step_seconds_high"),
    ("time_p50_seconds", "time_p50_low_seconds", "time_p50_high_seconds"),
)
"""Times of records with their bounds."""
LOCK = Lock()
"""Of the file ``made.json``."""
CLUSTERS = HERE / "clusters"
"""Records of real clusters, CLUSTER/REPORT.json.gz: a report shows them after those of its own machine."""
ROWS = 12
"""Rows of a page's table, at most."""
CLUSTER_ROWS = 6
"""Rows of a cluster's table, at most."""
FACTS = ("nodes", "MPI", "processor", "network", "date")
"""Facts of the section Job that a cluster's table is headed by."""
POINTS = 4
"""Sentences of a page beside its answer, at most."""
WITHOUT = (
    *("dataset", "nodes", "base", "load balance", "communication", "input", "exposed 95 %", "simulated ranks"),
    *("samples", "p95", "p99", "max", "correct", "algbw", "of native", "first alone", "beside second"),
    *("second alone", "beside first", "final loss", "encode", "decode", "memory", "launch"),
)
"""Columns that pages leave to report.html; notes that begin with one are left out, too."""
WIDER = "on a wider terminal"
"""In the line about columns that a printed table leaves out, which answers nothing."""
HEAD = """# Reports

Each page has a question, its answer, a figure, a table, and the command that measures it again. `make reports`
renders the pages of [`data`](data); `make measurements` measures on two cores. All tables and figures of one:
`hpcdl report reports/data/NAME.json.gz -o page.html`. A rank is a process on one core; emulated hosts share the
cores of one machine.

| report | question | answer | minutes | commit | date |
| --- | --- | --- | ---: | --- | --- |
"""
TWICE = """
## Measured twice

Times that agree with those of a second measurement, hours later: the 95 % interval of their ratio contains 1. The
intervals of one launch are over its repetitions: launches vary more, so that one launch decides nothing.

"""
OLDER = """
## Of earlier versions

These have not been measured since their pages have the form above.

"""


@dataclass(frozen=True)
class Report:
    """A report of ``reports.toml``."""

    name: str
    content: str
    command: str
    question: str = ""
    """Of a printed report; others have their suite's."""
    runs: str = ""
    """Runs of the records, taken together, with $RUNS; empty: $RUNS/NAME."""
    figure: str = ""
    """Beginning of the figure's title; empty: the main figure of the section that answers."""
    table: str = ""
    """Title of the table that is shown, or of its section; empty: the section that answers."""
    claims: str = ""
    """Beginning of the claim whose verdict answers; those on other claims of this run follow. Empty: none."""
    answers: str = ""
    """Words of the printed lines that answer; empty: the last sentence."""
    not_shown: str = ""
    """What the numbers do not show, in a sentence."""
    printed: bool = False
    """True if the page is what the command prints."""
    simulated: bool = False
    """True if one process makes it in virtual time: each core runs such a report at once."""
    root: bool = False
    needs: tuple[str, ...] = ()

    @property
    def data(self) -> Path:
        """The file that the page is made of."""
        return DATA / f"{self.name}{'.txt' if self.printed else '.json.gz'}"

    def obstacle(self) -> str | None:
        """Return why it cannot be measured here; None if it can."""
        if self.root and os.geteuid():
            return "needs root, for emulated hosts"
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"needs {', '.join(absent)}" if absent else None


def reports(names: list[str]) -> list[Report]:
    """Return the reports of ``reports.toml``, in their order; those of ``names``, if there are any."""
    known = [Report(**table) for table in tomllib.loads((HERE / "reports.toml").read_text())["report"]]
    if unknown := set(names) - {report.name for report in known}:
        sys.exit(f"unknown report {min(unknown)!r}; reports/reports.toml has: {', '.join(r.name for r in known)}")
    return [report for report in known if not names or report.name in names]


def made() -> dict[str, dict[str, object]]:
    """Return minutes, commit, machine and date of each measured report."""
    return dict(json.loads(MADE.read_text())) if MADE.exists() else {}


def shell(command: str, log: Path, runs: Path, *, printed: bool = False) -> str | None:
    """Run a command in the root of the tree; return what it printed, None if it failed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("a") as file:
        ended = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=ROOT,
            env={**os.environ, "PATH": path, "RUNS": str(runs)},
            stdout=subprocess.PIPE if printed else file,
            stderr=file,
            text=True,
            check=False,
        )
    return None if ended.returncode else ended.stdout or ""


def measured(report: Report, runs: Path) -> bool:
    """Measure a report unless it has been; return False if that failed."""
    (runs / "logs").mkdir(parents=True, exist_ok=True)
    log, record = runs / "logs" / f"{report.name}.txt", runs / f"{report.name}.json"
    if record.exists():
        return True
    shutil.rmtree(runs / report.name, ignore_errors=True)
    begin = time.monotonic()
    text = shell(report.command, log, runs, printed=report.printed)
    if text is None:
        return False
    facts = {
        "minutes": round((time.monotonic() - begin) / 60, 1),
        "commit": commit(),
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    DATA.mkdir(exist_ok=True)
    if report.printed:
        report.data.write_text(text.replace(str(runs), "$RUNS"))
    elif (
        shell(f"hpcdl report {report.runs or f'$RUNS/{report.name}'} --together -o {report.data}", log, runs)
        is None
    ):
        return False
    with LOCK:
        MADE.write_text(json.dumps({**made(), report.name: facts}, indent=1, sort_keys=True) + "\n")
    record.write_text(json.dumps(facts))
    return True


def commit() -> str:
    """Return the commit of the tree, marked if files other than reports differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.check_output(["/usr/bin/env", "git", *arguments], cwd=ROOT, text=True).strip()

    changed = git("status", "--porcelain", "--", ".", ":!reports")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def machine() -> str:
    """Return the processor and its cores that this process may use."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {name}"


def measure(runs: Path, names: list[str]) -> int:
    """Measure the reports; return 0 if all that can be measured here are."""
    chosen, before = reports(names), made()

    def succeeds(report: Report) -> bool:
        line = f"[{chosen.index(report) + 1}/{len(chosen)}] {report.name}"
        if why := report.obstacle():
            print(f"{line}: left out, {why}", flush=True)
            return True
        took = before.get(report.name, {}).get("minutes")
        print(f"{line}: {f'{took} minutes the last time' if took else 'never measured'}", flush=True)
        if measured(report, runs):
            return True
        print(f"{line}: FAILED, see {runs}/logs/{report.name}.txt", flush=True)
        return False

    every = [succeeds(report) for report in chosen if not report.simulated]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        every += pool.map(succeeds, [report for report in chosen if report.simulated])
    return 0 if all(every) else 1


def findings_of(report: Report, file: Path) -> Findings:
    """Return the findings in records; question, answering sections and papers are those of the tree's suite."""
    from hpcdl.analysis.run.pooling import read_pooled
    from hpcdl.report.run.findings import findings

    run = read_pooled([file])
    named = re.search(r"suites/[\w-]+\.toml", report.command)
    if named and (suite := ROOT / named[0]).exists():
        run = replace(run, suite=suite.read_text())
    return findings([run])[0]


def answering(report: Report, found: Findings, whole: Document) -> tuple[Section, list[Section]]:
    """Return the section whose table a page shows, and those that answer the suite's question.

    Of several tables of a section with a short form the page has that.
    """
    from hpcdl.report import contents

    pages = {one.page(found).title: one for one in contents.declared()}
    titles = [one.page(found).title for one in contents.answers(found)[0]]
    by_title = {one.title: one for one in whole.sections}
    tables = {table.title: replace(one, tables=[table]) for one in whole.sections for table in one.tables}
    chosen = [by_title[title] for title in [*titles, whole.main] if title in by_title]
    named = [{**tables, **by_title}[report.table]] if report.table else []
    others = [one for one in whole.sections[1:] if one.title != "Warnings"]
    main = next((one for one in [*named, *chosen, *others] if one.tables), whole.sections[-1])
    short = pages[main.title].short if main.title in pages and len(main.tables) > 1 else None
    return replace(short(found), charts=main.charts) if short else main, chosen


def said(report: Report, found: Findings) -> list[str]:
    """Return the verdicts on the claims that name this run alone, the answer first; none if no claim answers."""
    from hpcdl.report.claims import decide, sources

    every = [claim for source in sources() for claim in source.claims] if report.claims else []
    own = [claim for claim in every if {clause.run for clause in claim.clauses} == {report.name}]
    own.sort(key=lambda claim: not claim.text.startswith(report.claims))
    return [decide(claim, {report.name: found.records}).verdict.sentence for claim in own]


def page_table(section: Section, most: int) -> list[Table]:
    """Return the table of a page with at most so many rows; tables of one kind are joined."""
    from hpcdl.report.formats.document import REST, joined, named

    if not section.tables:
        return []
    several = section.per and len(section.tables) > 1
    table = joined(named(section.tables), section.per, most) if several else section.tables[0]
    begins = tuple(f"{name}:" for name in WITHOUT)
    notes = [note for note in table.notes if not note.casefold().startswith(begins)]
    if table.ascending and not several:
        cut = max(0, len(table.rows) - most)
        left_out = f"The last {most} of {len(table.rows)} rows; all are {REST}." if cut else ""
        table = replace(table, rows=table.rows[cut:], left_out=left_out)
    return [replace(table.first(most), notes=notes)]


def on_clusters(report: Report) -> tuple[list[str], list[Sequence[str]]]:
    """Return the lines of a page about real clusters, and of each its name, question, answer and date."""
    from hpcdl.report import contents
    from hpcdl.report.formats.document import Document, Section
    from hpcdl.report.formats.markup import markdown as written
    from hpcdl.report.run.declaration import certainty

    lines: list[str] = []
    rows: list[Sequence[str]] = []
    for file in sorted(CLUSTERS.glob(f"*/{report.name}.json.gz")):
        name = file.parent.name
        found = findings_of(report, file)
        whole = contents.document(found)
        main, _ = answering(report, found, whole)
        answer = [*said(report, found), whole.sections[0].paragraphs[0]][0]
        job = {fact: value for one in whole.sections if one.title == "Job" for fact, value in one.tables[0].rows}
        place = "; ".join(f"{fact} {job[fact]}" for fact in FACTS if fact in job)
        basis = f"Basis: {certainty(found.records)}."
        section = Section(f"On {name}", [answer, f"{place}. {basis}"], tables=page_table(main, CLUSTER_ROWS))
        lines += written([Document("", [section])]).strip().splitlines()[1:]
        rows.append((name, found.question or report.content, answer, str(job.get("date", ""))[:10]))
    return lines, rows


def write_page(report: Report, facts: dict[str, object]) -> tuple[str, str, list[Sequence[str]]]:
    """Write the page of a report, and its figure; return its question, its answer, and the clusters' rows."""
    made_on = f"{facts['machine']}, commit {facts['commit']}, {facts['date']}, {facts['minutes']:g} minutes"
    foot = [
        *(["## What this does not show", "", report.not_shown.strip(), ""] if not report.printed else []),
        f"`{report.command.strip()}`" if "\n" not in report.command else f"`make measurements` ({report.name})",
        "",
        f"{'Simulated' if report.simulated else 'Measured'} on {made_on}. {facts.get('note', '')}".strip(),
    ]
    if report.printed:
        text = report.data.read_text().strip()
        title, printed = report.question, text.splitlines()
        sentences = [line.removeprefix("- ") for line in printed if line.endswith(".") and WIDER not in line]
        answer = " ".join(line for line in sentences if report.answers in line) if report.answers else ""
        answer = answer or (sentences or printed)[-1]
        text = text if "\n|" in text else f"```text\n{text}\n```"
        lines = [f"# {title}", "", report.not_shown.strip(), "", text, "", *foot]
        (HERE / f"{report.name}.md").write_text("\n".join(lines) + "\n")
        return title, answer, []

    from hpcdl.report import contents
    from hpcdl.report.formats.cells import markdown
    from hpcdl.report.formats.document import REST, Document, Section
    from hpcdl.report.formats.figure import figure, standalone
    from hpcdl.report.formats.markup import markdown as written
    from hpcdl.report.run.declaration import certainty

    found = findings_of(report, report.data)
    whole = contents.document(found, charts=True)
    answered = any(one.name in found.answered_by for one in contents.answers(found)[0])
    own = [whole.sections[0].paragraphs[0], *whole.sections[0].points]  # of another section if none answers
    answer, *points = [*said(report, found), *(own if answered or not report.claims else [])]
    main, answers = answering(report, found, whole)
    charts = [chart for one in (main, *answers, *whole.sections) for chart in one.charts]
    chart = next((one for one in charts if one.title.casefold().startswith(report.figure.casefold())), None)
    if chart is not None:
        (HERE / f"{report.name}.svg").write_text(standalone(figure(chart, 1), chart.title, chart.note))
    shown = Section(main.title, tables=page_table(main, ROWS))
    cells = [row[0] for table in shown.tables for row in table.rows]
    names = [answer, *points[:POINTS], chart.title if chart else "", *cells]
    letters = [
        f"{name}: {words or 'without what the others have'}."
        for name, words in found.settings.own.values()
        if re.search(r"\b[A-Z]$", name) and any(re.search(rf"\b{re.escape(name)}(:|,|$)", text) for text in names)
    ]
    more = [f"{len(points) - POINTS} more are {REST}."] if len(points) > POINTS else []
    head = Section("Answer", [answer], [*points[:POINTS], *more, *letters])
    text = written([Document(found.question or report.content, [head, shown])])
    image = ["", f"![{markdown(chart.title)}]({report.name}.svg)"] if chart is not None else []
    notes = [markdown(note) for note in main.paragraphs if note not in text]
    cluster_lines, cluster_rows = on_clusters(report)
    lines = [
        *text.replace(f"\n## {main.title}", "\n".join([*image, "", f"## {main.title}"]), 1).rstrip().splitlines(),
        *(line for note in notes for line in ("", note)),
        "",
        f"Basis: {certainty(found.records)}.",
        "",
        *foot,
        *cluster_lines,
    ]
    (HERE / f"{report.name}.md").write_text("\n".join(lines) + "\n")
    return found.question or report.content, answer, cluster_rows


def agree(other: Path) -> int:
    """Write which share of the times agree with those of another measurement, in whose folder ``data`` they are.

    Two times agree if the 95 % interval of their ratio contains 1. Disturbed cases do not count.
    """
    found: dict[tuple[str, bool], list[bool]] = {}
    measured = [one for one in reports([]) if not (one.printed or one.simulated)]
    for report in (one for one in measured if one.data.exists() and (other / one.data.name).exists()):
        sides = (findings_of(report, folder / report.data.name).records for folder in (DATA, other))
        ours, theirs = ({(one.case, one.seed): one for one in side if not one.disturbed} for side in sides)
        for pair in ((ours[key], theirs[key]) for key in ours.keys() & theirs.keys()):
            for names in TIMES:
                (value, *bounds), (of, *others) = ([getattr(one, name) for name in names] for one in pair)
                if None in {value, of, *bounds, *others}:
                    continue
                reach = math.hypot(*(math.log(high / low) / 2 for low, high in (bounds, others)))
                agrees = abs(math.log(value / of)) <= reach
                for name in (report.name, "all"):
                    found.setdefault((name, pair[0].launches > 1), []).append(agrees)
    shown = {key: f"{sum(each)} of {len(each)}" for key, each in found.items()}
    names = [name for name in dict.fromkeys(name for name, _ in shown) if name != "all"]
    rows = [(name, shown.get((name, True), "-"), shown.get((name, False), "-")) for name in (*names, "all")]
    table = [("report", "of several launches", "of one launch"), ("---", "---:", "---:"), *rows]
    AGREEMENT.write_text("".join(f"| {' | '.join(row)} |\n" for row in table))
    return 0


def render() -> int:
    """Write the pages of all measured reports, and the README."""
    facts, rows, older = made(), [], []
    for report in reports([]):
        if report.name in facts and report.data.exists():
            of = facts[report.name]
            *texts, on = write_page(report, of)
            cells = [text.replace("|", "\\|") for text in texts]
            link = f"[{report.name}]({report.name}.md)"
            rows.append(f"| {link} | {' | '.join(cells)} | {of['minutes']} | {of['commit']} | {of['date']} |")
            for cluster, question, answer, date in on:
                rows.append(f"| {link} on {cluster} | {question} | {answer} | | | {date} |".replace("\n", " "))
        elif kept := sorted(file.name for file in HERE.glob(f"{report.name}.*") if file.suffix != ".toml"):
            older.append(f"- {', '.join(f'[{name}]({name})' for name in kept)}: {report.content}")
    text = HEAD + "\n".join(rows) + "\n" + (OLDER + "\n".join(older) + "\n" if older else "")
    text += TWICE + AGREEMENT.read_text() if AGREEMENT.exists() else ""
    (HERE / "README.md").write_text(
        text + "\n[gpu.md](gpu.md): what ran on a GPU, and training steps beside PyTorch's.\n"
    )
    return 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", runs, *names]:
            sys.exit(measure(Path(runs).resolve(), names))
        case ["agree", data]:
            sys.exit(agree(Path(data)))
        case ["render"]:
            sys.exit(render())
        case _:
            sys.exit(__doc__)
