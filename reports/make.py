"""Measure what the reports show, and render their pages: the Python of .venv runs it.

    python reports/make.py measure [--for MINUTES] RUNS [NAME ...]  run the suites, but not those that RUNS has
    python reports/make.py trials [--for MINUTES] RUNS [NAME ...]   trials of learning rates alone; print the best
    python reports/make.py render                                   write all pages again, of the data in the tree
    python reports/make.py agree DATA                               count times that agree with another measurement

``reports.toml`` lists the reports. A measurement leaves ``data/NAME.json.xz``, the records of its runs, or
``data/NAME.txt``, what a program printed, and an entry of ``data/made.json``: minutes, commit, machine and date; a
``note`` that somebody adds there, on how these data came about, stands on the page until the next measurement. A
page is made of these alone, so that a new version of hpcdl renders all of them without a new measurement.

Simulated reports run two at a time, each on one core, and go on where an earlier call stopped: no finished case
runs again, cases that another report has finished are copied, and minutes and commits are those of all calls. When
the MINUTES are over, or at SIGTERM, runs end and lose only the case in progress; their data are then marked as
unfinished. Other reports are measured as a whole: one that took longer the last time than is left is not begun.
"""

from __future__ import annotations

import importlib.util
import json
import lzma
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from queue import Queue
from threading import Event, Lock, Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.analysis.run.record import Record
    from hpcdl.report.formats.document import Chart, Document, Section
    from hpcdl.report.run.claims import Decision
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
"""Of the file ``made.json``, and of trials that are copied."""
STOP = Event()
"""Set when the minutes are over: commands end, and no other begins."""
TRIALS = "trials.json"
"""File of a run folder: the trials of learning rates that have ended, by their settings."""
OK, FAILED, EDGE, INTERRUPTED = 0, 1, 3, 75
"""Exit codes of hpcdl; EDGE: of trials, if a best rate is the smallest or the largest."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment of a report that has one core."""
GPU_PATH = (
    *("hpcdl/nn/kernels/cupy", "hpcdl/fabric/device", "hpcdl/compression/kernels/cuda"),
    "hpcdl/compression/kernels/cuda_launchers.py",
)
"""Folders and files whose code runs with a GPU alone."""
CHANGED = "## Changed since it was measured"
CLUSTERS = HERE / "clusters"
"""Records of real clusters, CLUSTER/REPORT.json.xz: a report shows them after those of its own machine."""
ROWS = 12
"""Rows of a page's table, at most."""
CLUSTER_ROWS = 6
"""Rows of a cluster's table, at most."""
FACTS = ("nodes", "MPI", "processor", "network", "date")
"""Facts of the section Job that a cluster's table is headed by."""
MOST = 3
"""Sentences of a page below its answer, at most."""
HEAD = """# Reports

hpcdl is a benchmark suite for distributed deep learning. Each page here has a question, its answer, a figure, a
table, and the command that measures it again. The words of the answers:

- Near-linear: efficiency (speedup / number of ranks) of at least 0.9. A rank is one MPI process.
- A range in parentheses is the 95 % interval of the number before it.
- Launch: one start of the MPI job. Launches differ more than repetitions within one launch, so that one launch
  decides nothing.
- Measured: real programs on one machine with two cores. Emulated hosts: parts of this machine, joined by links of
  limited rate; they share its cores. Replayed: messages are real, and ranks sleep for recorded compute times.
- Simulated: computed with a model of the network; no such machine was used. Trained in virtual time: gradients are
  real, times are simulated.

`make reports` renders these pages from [`data`](data), and `make measurements` measures all of them again. A page
has the main figure and the rows that answer its question. `hpcdl report reports/data/NAME.json.xz -o page.html`
writes the whole report, with all rows and figures.
"""
GROUPS = (
    *("Start here", "Interconnect", "Scaling", "Large batches", "Methods of training", "Compression"),
    *("Papers", "hpcdl itself"),
)
"""Groups of reports, by the questions that they answer."""
OTHERS = (
    ("Papers", "claims", "Which claims hold?", ""),
    (
        *("hpcdl itself", "gpu", "What changes on a GPU?"),
        "On one H200 GPU training steps are 1.08 to 1.68 times as fast as PyTorch's.",
    ),
)
"""Group, name, question and answer of pages that are not made of data; the answer of claims is computed."""
MOVED = """
## Where did a page go?

The answer of a page that is gone is on another page, or a command prints it.

"""
TWICE = """
## Measured twice

These reports were measured at two times with the same processor. The table counts the times that agree: the 95 %
interval of (second time / first time) contains 1. With one launch the interval contains only the variation of its
repetitions, and launches differ more: so fewer times agree.

"""


@dataclass(frozen=True)
class Report:
    """A report of ``reports.toml``."""

    name: str
    """That of its suite; a printed report has its own, and so has one of another's page."""
    command: str
    group: str = ""
    """One of :data:`GROUPS`; empty for one of another's page."""
    of: str = ""
    """Report whose page states this measurement, on another testbed; empty: it has a page of its own."""
    question: str = ""
    """Of a printed report; others have their suite's. One on another's page has one if its answer stands there."""
    figure: str = ""
    """Beginning of the figure's title; empty: the main figure of the section that answers."""
    tables: tuple[str, ...] = ()
    """Titles of the tables that are shown, or of their sections; empty: the section that answers."""
    answers: str = ""
    """Words of the printed line that answers; empty: the sentence below the heading VERDICT."""
    not_shown: str = ""
    """What the numbers do not show, in a sentence."""
    printed: bool = False
    """True if the page is what the command prints."""
    claims: tuple[str, ...] = ()
    """Parts of claims whose findings answer; empty: of one of another's page those that it decides, else none."""
    over_ranks: tuple[str, ...] = ()
    """Parts of claims whose numbers, times by those of a formula, are a figure over ranks."""
    over_rates: str = ""
    """Scheme whose largest sum on most hosts is a figure over the rates of the links that are not slow."""
    answer_alone: bool = False
    """True if another report's page has only the answer of what the command prints."""
    stands: bool = False
    """True if the data remain as they are: no measurement replaces them."""
    simulated: bool = False
    """True if one process makes it in virtual time: each core runs such a report at once."""
    in_parts: bool = False
    """True if a measurement on real ranks goes on where an earlier call stopped."""
    root: bool = False
    needs: tuple[str, ...] = ()

    @property
    def data(self) -> Path:
        """The file that the page is made of."""
        return DATA / f"{self.name}{'.txt' if self.printed else '.json.xz'}"

    @property
    def resumes(self) -> bool:
        """True if a measurement goes on where an earlier call stopped."""
        return (self.simulated or self.in_parts) and not self.printed

    def obstacle(self) -> str | None:
        """Return why it cannot be measured here; None if it can."""
        if self.stands:
            return "its data stand"
        if self.root and os.geteuid():
            return "needs root, for emulated hosts"
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"needs {', '.join(absent)}" if absent else None


def reports(names: list[str]) -> list[Report]:
    """Return the reports of ``reports.toml``, in their order; those of ``names``, if there are any."""
    listed = tomllib.loads((HERE / "reports.toml").read_text())["report"]
    known = [Report(**{**table, "tables": tuple(table.get("tables", ()))}) for table in listed]
    if unknown := set(names) - {report.name for report in known}:
        sys.exit(f"unknown report {min(unknown)!r}; reports/reports.toml has: {', '.join(r.name for r in known)}")
    return [report for report in known if not names or report.name in names]


def moved() -> str:
    """Return the table of pages that are gone, with the report that has their answer, or a command."""
    pages = tomllib.loads((HERE / "reports.toml").read_text()).get("moved", {}).items()
    rows = [(page, f"[{to}]({to}.md)" if (HERE / f"{to}.md").exists() else to) for page, to in pages]
    table = [("page", "successor"), ("---", "---"), *rows]
    return "".join(f"| {page} | {to} |\n" for page, to in table)


def question_of(report: Report) -> str:
    """Return the question of a report's suite."""
    suite = suite_of(report)
    return str(tomllib.loads(suite.read_text())["suite"]["question"]) if suite.exists() else report.question


def made() -> dict[str, dict[str, object]]:
    """Return minutes, commit, machine and date of each measured report."""
    return dict(json.loads(MADE.read_text())) if MADE.exists() else {}


def shell(
    command: str,
    log: Path,
    runs: Path,
    *,
    printed: bool = False,
    core: int | None = None,
    each_second: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Run a command in the root of the tree, on one core if it is given; return its exit code and what it printed.

    Its processes receive SIGTERM once :data:`STOP` is set.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    with (
        log.open("a") as file,
        subprocess.Popen(
            [*pinned, "/bin/sh", "-c", command],
            cwd=ROOT,
            env={**os.environ, **({} if core is None else ONE_THREAD), "PATH": path, "RUNS": str(runs)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if printed else file,
            stderr=file,
            text=True,
            start_new_session=True,  # so that a signal reaches all of its processes, and the terminal's none
        ) as process,
    ):
        stopped = False
        while True:
            try:
                text, _ = process.communicate(timeout=1)
            except subprocess.TimeoutExpired:
                each_second()
                if STOP.is_set() and not stopped:
                    stopped = True
                    os.killpg(process.pid, signal.SIGTERM)
            else:
                return process.returncode, text or ""


class Calls:
    """The calls that measured a report: RUNS/NAME.json. A call that is killed has the minutes until then."""

    def __init__(self, report: Report, runs: Path) -> None:
        self._path = runs / f"{report.name}.json"
        self._calls: list[dict[str, object]] = []
        self.copied: dict[str, int] = {}
        """Cases that other reports have finished, by report."""
        self.commits: list[str] = []
        """Commits of the copied cases."""
        self.finished = False
        if self._path.exists():
            kept = json.loads(self._path.read_text())
            self._calls, self.finished = kept["calls"], kept["finished"]
            self.copied, self.commits = kept["copied"], kept["commits"]

    def begin(self) -> None:
        """Begin a call."""
        self._began = self._written = time.monotonic()
        date = time.strftime("%Y-%m-%d", time.gmtime())
        self._calls.append({"commit": commit(), "machine": machine(), "date": date})
        self.write()

    def write(self) -> None:
        """Write the calls and the minutes of this one."""
        self._written = time.monotonic()
        self._calls[-1]["minutes"] = round((self._written - self._began) / 60, 2)
        kept = {"calls": self._calls, "finished": self.finished, "copied": self.copied, "commits": self.commits}
        temporary = self._path.with_suffix(".partial")
        temporary.write_text(json.dumps(kept))
        temporary.replace(self._path)

    def write_each_minute(self) -> None:
        """Write the calls if the last time is a minute ago."""
        if time.monotonic() - self._written > 60:
            self.write()

    def distinct(self, name: str) -> list[str]:
        """Return the different values of a fact of the calls, in their order."""
        return list(dict.fromkeys(str(call[name]) for call in self._calls))

    def facts(self) -> dict[str, object]:
        """Return the entry of ``made.json``."""
        facts: dict[str, object] = {
            "minutes": round(sum(float(str(call["minutes"])) for call in self._calls), 1),
            "commit": ", ".join(dict.fromkeys([*self.distinct("commit"), *self.commits])),
            "machine": "; ".join(self.distinct("machine")),
            "date": self.distinct("date")[-1],
        }
        if self.copied:
            facts["copied"] = self.copied
        return facts if self.finished else {**facts, "finished": False}


def measured(report: Report, runs: Path, core: int | None = None) -> bool:
    """Measure a report unless it has been; return False if that failed, or if it is not finished."""
    from hpcdl.trace.schema import TEXT

    (runs / "logs").mkdir(parents=True, exist_ok=True)
    log, calls = runs / "logs" / f"{report.name}.txt", Calls(report, runs)
    if calls.finished:
        return True
    command = report.command
    if report.resumes:
        copy_cases(report, runs, calls)
        share_trials(report, runs)
        command = f"exec {command} --resume --mix-environments"
    else:
        shutil.rmtree(runs / report.name, ignore_errors=True)
    calls.begin()
    code, text = shell(command, log, runs, printed=report.printed, core=core, each_second=calls.write_each_minute)
    # a training that cannot be finished is a result: the records name it
    calls.finished = code == OK or (report.resumes and code == FAILED and (runs / report.name / "run.h5").exists())
    calls.write()
    if not (calls.finished or report.resumes):
        return False
    DATA.mkdir(exist_ok=True)
    if report.printed:
        report.data.write_text(without_paths(text, runs))
    else:
        pooled = [sys.executable, "-m", "hpcdl", "report", str(runs / report.name), "--together"]
        with log.open("a") as file:
            if subprocess.run([*pooled, "-o", str(report.data)], stdout=file, stderr=file, check=False).returncode:
                return False
        records = without_paths(lzma.decompress(report.data.read_bytes()).decode(), runs)
        report.data.write_bytes(lzma.compress(records.encode(), filters=TEXT))
    with LOCK:
        MADE.write_text(json.dumps({**made(), report.name: calls.facts()}, indent=1, sort_keys=True) + "\n")
    return code == OK


def copy_cases(report: Report, runs: Path, calls: Calls) -> None:
    """Copy the cases that other reports in ``runs`` have finished on this machine, such as shared baselines.

    Parts of cases that the suite no longer has are renamed, so that unfinished records have none of them.
    """
    from hpcdl.exit_codes import UsageError
    from hpcdl.suite import load
    from hpcdl.trace.recorder import TraceError

    words = shlex.split(report.command)
    of = {name: [value for option, value in pairwise(words) if option == name] for name in ("--case", "--set")}
    try:
        suite = load(suite_of(report), of["--set"], of["--case"], full="--full" in words)
    except UsageError:  # hpcdl run will print it
        return
    cases, folder = {case.digest: case for case in suite.cases}, runs / report.name / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.h5"):
        if digest_of(path) not in cases:
            path.rename(path.with_suffix(".other"))
    for other in reports([]):
        theirs = Calls(other, runs)
        if other.name == report.name or not other.resumes or theirs.distinct("machine") != [machine()]:
            continue
        missing = cases.keys() - {digest_of(path) for path in folder.glob("*.h5")}
        for path in sorted((runs / other.name / "parts").glob("*.h5")):
            if (digest := digest_of(path)) in missing:
                try:
                    copy_part(path, folder / path.name, cases[digest].name, suite.name, suite.text)
                except TraceError:  # damaged: it runs again
                    continue
                calls.copied[other.name] = calls.copied.get(other.name, 0) + 1
                calls.commits = list(dict.fromkeys([*calls.commits, *theirs.distinct("commit")]))


def share_trials(report: Report, runs: Path) -> None:
    """Give a run folder the trials of learning rates that any report in ``runs`` has finished."""
    (runs / report.name).mkdir(parents=True, exist_ok=True)
    with LOCK:
        kept = [json.loads(path.read_text()) for path in sorted(runs.glob(f"*/{TRIALS}"))]
        if together := {settings: trial for each in kept for settings, trial in each.items()}:
            temporary = runs / report.name / f".{TRIALS}.partial"
            temporary.write_text(json.dumps(together, indent=1))
            temporary.replace(runs / report.name / TRIALS)


def digest_of(part: Path) -> str:
    """Return the digest of the case in a part, by the name of its file."""
    return part.stem.rpartition("-")[2]


def copy_part(path: Path, copy: Path, case: str, suite: str, text: str) -> None:
    """Copy the part of a finished case; the copy names another suite, its ``text``, and the case's name there."""
    import h5py

    from hpcdl.trace import files
    from hpcdl.trace.schema import open_trace

    with files.atomic_write(copy) as temporary:
        with (
            open_trace(path) as source,
            h5py.File(temporary, "w", locking=False, userblock_size=files.SIZE) as target,
        ):
            target.attrs.update(source.attrs)
            for name in source:
                source.copy(name, target)
            target["cases/000000"].attrs.update(suite=suite, case=case)
            del target["suite"]
            target["suite"] = text
        files.write_checksum(temporary)


def suite_of(report: Report) -> Path:
    """Return the suite that a report's command runs."""
    named = re.search(r"suites/[\w-]+\.toml", report.command)
    return ROOT / (named[0] if named else f"suites/{report.name}.toml")


def without_paths(text: str, runs: Path) -> str:
    """Return what a measurement left, without the paths of this machine."""
    return text.replace(str(runs), "$RUNS").replace(str(ROOT), "$ROOT")


def git(*arguments: str) -> str:
    """Return what git prints about the tree. Raises CalledProcessError."""
    return subprocess.check_output(["/usr/bin/env", "git", *arguments], cwd=ROOT, text=True).strip()


def commit() -> str:
    """Return the commit of the tree, marked if files other than reports differ from it."""
    changed = git("status", "--porcelain", "--", ".", ":!reports")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def machine() -> str:
    """Return the processor and its cores that this process may use."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {name}"


def stop_after(minutes: float | None) -> float:
    """Set :data:`STOP` when the minutes are over, or at SIGTERM; return the time of that (s, monotonic)."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: STOP.set())
    if minutes is None:
        return math.inf
    timer = Timer(60 * minutes, STOP.set)
    timer.daemon = True
    timer.start()
    return time.monotonic() + 60 * minutes


def on_own_cores(work: Callable[[Report, int], bool], chosen: list[Report]) -> list[bool]:
    """Do the work for each report, one report at a time on each core."""
    cores = sorted(os.sched_getaffinity(0))
    free: Queue[int] = Queue()
    for core in cores:
        free.put(core)

    def on_core(report: Report) -> bool:
        core = free.get()
        try:
            return work(report, core)
        finally:
            free.put(core)

    with ThreadPoolExecutor(len(cores)) as pool:
        return list(pool.map(on_core, chosen))


def measure(runs: Path, names: list[str], minutes: float | None = None) -> int:
    """Measure the reports; return 0 if all that can be measured here are."""
    chosen, before, end = reports(names), made(), stop_after(minutes)

    def succeeds(report: Report, core: int | None = None) -> bool:
        line = f"[{chosen.index(report) + 1}/{len(chosen)}] {report.name}"
        if why := report.obstacle():
            print(f"{line}: left out, {why}", flush=True)
            return True
        took = before.get(report.name, {}).get("minutes", 0)
        left = (end - time.monotonic()) / 60
        if STOP.is_set() or (not report.resumes and float(str(took)) > left):
            print(f"{line}: not begun, {max(left, 0):.0f} minutes are left", flush=True)
            return False
        print(f"{line}: {f'{took} minutes the last time' if took else 'never measured'}", flush=True)
        if measured(report, runs, core):
            return True
        state = "not finished" if STOP.is_set() else f"FAILED, see {runs}/logs/{report.name}.txt"
        print(f"{line}: {state}", flush=True)
        return False

    every = [succeeds(report) for report in chosen if not report.simulated]
    every += on_own_cores(succeeds, [report for report in chosen if report.simulated])
    return INTERRUPTED if STOP.is_set() else OK if all(every) else FAILED


def trials(runs: Path, names: list[str], minutes: float | None = None) -> int:
    """Run the trials of learning rates of the reports that resume, and print the best rates of each.

    Returns EDGE if one is at an edge of its grid: then its suite needs one more rate there, and another call.
    """
    stop_after(minutes)
    chosen = [report for report in reports(names) if report.resumes and "\ntune" in suite_of(report).read_text()]
    (runs / "logs").mkdir(parents=True, exist_ok=True)
    ended: dict[str, tuple[int, str]] = {}

    def run_trials(report: Report, core: int) -> bool:
        if STOP.is_set():
            return False
        print(f"[{chosen.index(report) + 1}/{len(chosen)}] {report.name}: trials", flush=True)
        share_trials(report, runs)
        log, calls = runs / "logs" / f"{report.name}-trials.txt", Calls(report, runs)
        calls.begin()
        command = f"exec {report.command} --trials --resume"
        ended[report.name] = shell(
            command, log, runs, printed=True, core=core, each_second=calls.write_each_minute
        )
        calls.write()
        return ended[report.name][0] in {OK, EDGE}

    every = on_own_cores(run_trials, chosen)
    for name, (code, text) in ended.items():
        state = {OK: "all best rates are inside their grids", EDGE: "a best rate is at an edge"}
        print(f"\n{name}: {state.get(code, f'FAILED or not finished, see {runs}/logs/{name}-trials.txt')}\n{text}")
    if STOP.is_set():
        return INTERRUPTED
    edge = any(code == EDGE for code, _ in ended.values())
    return FAILED if not all(every) else EDGE if edge else OK


def findings_of(report: Report, file: Path) -> Findings:
    """Return the findings in records; question, answering sections and papers are those of the tree's suite."""
    from hpcdl.analysis.run.pooling import read_pooled
    from hpcdl.report.run.findings import findings

    run = read_pooled([file])
    if (suite := suite_of(report)).exists():
        run = replace(run, suite=suite.read_text())
    return findings([run])[0]


def page_of(report: Report, file: Path, rows: int) -> tuple[Findings, Document, list[Section]]:
    """Return the findings in records, all of their sections, and those of a page: the answer, then tables.

    The second has the figures, of the section that answers first. Of several tables of a section with a short form
    the page has that.
    """
    from hpcdl.report import contents
    from hpcdl.report.formats.document import Section

    found = findings_of(report, file)
    whole = contents.document(found, charts=True)
    declared = {one.page(found).title: one for one in contents.declared()}
    titles = [one.page(found).title for one in contents.answers(found)[0]]
    by_title = {one.title: one for one in whole.sections}
    tables = {table.title: replace(one, tables=[table]) for one in whole.sections for table in one.tables}
    chosen = [by_title[title] for title in [*titles, whole.main] if title in by_title]
    others = [one for one in whole.sections[1:] if one.title != "Warnings"]
    first = next((one for one in [*chosen, *others] if one.tables), whole.sections[-1])
    shown = [{**tables, **by_title}[title] for title in report.tables] or [first]
    charts = [chart for one in (shown[0], *chosen, *whole.sections) for chart in one.charts]
    verdict = contents.verdict_page(found)
    head = Section("Answer", verdict.paragraphs[:1], verdict.points[:MOST], badges=verdict.badges)
    sections = [head]
    for one in shown:
        short = declared[one.title].short if one.title in declared and len(one.tables) > 1 else None
        main = short(found) if short else one
        notes = [note for note in main.paragraphs if note not in (*head.paragraphs, *head.points)]
        main = Section(main.title, notes, tables=main.answering(rows), charts=charts if one is shown[0] else [])
        sections.append(main)
    return found, whole, sections


def claims_of(report: Report, found: Findings) -> list[Decision]:
    """Return the decisions on the parts of claims of sources that the page of this report carries."""
    from hpcdl.analysis.network.clusters import records as measured_by_others
    from hpcdl.report.run.claims import BY_OTHERS, decide, sources

    every = [(claim, part) for source in sources() for claim in source.claims for part in claim.parts]
    own = [(claim, part) for claim, part in every if part.report == (report.of or report.name)]
    runs = {run: records_in(DATA / run) for _, part in own for run in part.runs if run != BY_OTHERS}
    runs |= {BY_OTHERS: measured_by_others(), report.name: found.records}
    return [decide(claim, part, runs) for claim, part in own]


@cache
def records_in(file: Path) -> list[Record]:
    """Return the records of a report, read once for all pages and parts of pages."""
    from hpcdl.commands.claims import records_of

    return records_of(file)


def answer_of(report: Report, decisions: Sequence[Decision]) -> str:
    """Return the findings on the claims that answer a report's question; empty without any."""
    from hpcdl.report.formats.cells import NONE, sentence

    own = [one.part for one in decisions if report.of and report.name == next(iter(one.part.runs))]
    parts = report.claims or [part.id for part in own]
    findings = {one.part.id: one.finding for one in decisions if one.finding != NONE}
    return " ".join(sentence(findings[part]) for part in parts if part in findings)


def over_ranks(report: Report, decisions: Sequence[Decision]) -> list[Chart]:
    """Return a figure of the claims of a report's figure: numbers over ranks, and the limits as lines."""
    from hpcdl.report.formats.cells import digits, volume, whole
    from hpcdl.report.formats.document import Axis, Lines, Point, Series
    from hpcdl.report.run.names import TITLES

    own = [one for one in decisions if one.part.id in report.over_ranks]
    lines: dict[str, list[Point]] = {}
    limits: dict[float, list[Point]] = {}
    for found in (found for one in own for found in one.found if found.used):
        clause, case = found.clause, dict(found.clause.case)
        ranks = float(case["ranks"])
        name = f"{TITLES[case['aggregation']]}, {volume(case['message_bytes'])}"
        lines.setdefault(name, []).append(Point(ranks, *found.value))
        for limit in (clause.least, clause.most):
            limits.setdefault(limit or 1.0, []).append(Point(ranks, limit or 1.0))
    series = [Series(name, points) for name, points in lines.items()]
    series += [Series(f"limit {limit:g}", sorted(points), "reference") for limit, points in limits.items()]
    axes = (
        Axis("ranks", whole, 2, sorted({point.x for line in series for point in line.points})),
        Axis("time / formula", digits),
    )
    return [Lines("Time / formula over ranks", *axes, series)] if lines else []


def over_rates(report: Report) -> list[Chart]:
    """Return a figure of a sum over the links' rate, measured on testbeds with one slow link or only such links.

    Two lines show the time of a ring's bytes: on the slow link, and on links that all have the rate of the others.
    """
    from hpcdl.report.formats.cells import seconds, volume, whole
    from hpcdl.report.formats.document import Axis, Lines, Point, Series

    of_page = [each for each in reports([]) if report.over_rates and report.name in {each.name, each.of}]
    by_rate = {float(re.findall(r"--rate (\d+)mbit", each.command)[0]): each for each in of_page}
    slow = min(by_rate, default=0.0)
    points, alone, alike = list[Point](), list[Point](), list[Point]()
    size = 0
    for rate, each in sorted(by_rate.items()):
        sums = [
            one
            for one in records_in(each.data)
            if one.kind == "collective" and one.aggregation == report.over_rates
        ]
        most = max(sums, key=lambda one: (one.ranks, one.message_bytes))
        times = (most.time_p50_seconds, most.time_p50_low_seconds, most.time_p50_high_seconds)
        points.append(Point(rate, *(math.nan if time is None else time for time in times)))
        size, bits = most.message_bytes or 0, 16 * (1 - 1 / most.ranks) * (most.message_bytes or 0)
        alone.append(Point(rate, bits / slow / 1e6))
        alike.append(Point(rate, bits / rate / 1e6))
    title = f"Time of a {report.over_rates} of {volume(size)} over the others' rate"
    series = [
        Series(f"measured, one link of {slow:g} Mbit/s", points),
        Series("its bytes on the slowest link alone", alone, "reference"),
        Series("its bytes if all links had the others' rate", alike, "reference"),
    ]
    x = Axis("other links (Mbit/s)", whole, 2, sorted(by_rate))
    return [Lines(title, x, Axis("time", seconds), series)] if points else []


def on_clusters(report: Report) -> tuple[list[str], list[str]]:
    """Return the lines of a page about real clusters, and their rows of the README."""
    from hpcdl.report.formats.document import Document
    from hpcdl.report.formats.writers import markdown as written

    lines, rows = list[str](), list[str]()
    for file in sorted(CLUSTERS.glob(f"*/{report.name}.json.xz")):
        found, whole, (head, shown, *_) = page_of(report, file, CLUSTER_ROWS)
        job = {fact: value for one in whole.sections if one.title == "Job" for fact, value in one.tables[0].rows}
        place = "; ".join(f"{fact} {job[fact]}" for fact in FACTS if fact in job)
        name, paragraphs = file.parent.name, [*head.paragraphs, f"{place}."]
        section = replace(head, title=f"On {name}", paragraphs=paragraphs, tables=shown.tables)
        lines += written([Document("", [section])]).strip().splitlines()[1:]
        rows.append(row(report.name, f" on {name}", found.question, head.paragraphs[0], how(found)))
    return lines, rows


def how(found: Findings) -> str:
    """Return how the times of records came about, in words."""

    def word(record: Record) -> str:
        if record.network:
            return "trained in virtual time" if (record.kind or "train") == "train" else "simulated"
        place = " on emulated hosts" if "emulated" in record.marks else ""
        return f"{'replayed' if record.kind == 'replay' else 'measured'}{place}"

    return ", ".join(dict.fromkeys(map(word, found.records)))


def row(name: str, place: str, question: str, answer: str, made_by: str) -> str:
    """Return a row of the README."""
    cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in (question, answer, made_by))
    return f"| [{name}]({name}.md){place} | {' | '.join(cells)} |"


def made_by_command(report: Report, facts: dict[str, object]) -> list[str]:
    """Return lines of a page: a command, and where and when it was measured."""
    where = f"{facts['machine']}, commit {facts['commit']}, {facts['date']}, {facts['minutes']:g} minutes"
    copied = facts.get("copied")
    others = [f"{number} from `{name}`" for name, number in copied.items()] if isinstance(copied, dict) else []
    shared = f"Cases that another report measured: {', '.join(others)}." if others else ""
    line = f"{'Simulated' if report.simulated else 'Measured'} on {where}. {facts.get('note', '')} {shared}"
    command = report.command.strip()
    return [
        f"`make measurements` ({report.name})" if "\n" in command else f"`{command}`",
        "",
        " ".join(line.split()),
    ]


def write_page(report: Report, facts: dict[str, dict[str, object]]) -> list[str]:
    """Write the page of a report, and its figure; return its rows of the README."""
    question, answer, made_by, lines = printed_page(report) if report.printed else recorded_page(report)
    on, others = on_clusters(report)
    same_page = [each for each in reports([]) if report.name in {each.name, each.of} and each.name in facts]
    for other in (each for each in same_page if each.of and each.question):
        *_, more = printed_page(other) if other.printed else recorded_page(other)
        _, _, _, _, words, *rest = more
        lines += ["", f"## {other.question}", "", words, *([] if other.answer_alone else rest)]
        lines += ["", other.not_shown.strip()] if other.not_shown else []
    lines += ["", "## What this does not show", "", report.not_shown.strip()]
    for each in same_page:
        lines += ["", *made_by_command(each, facts[each.name])]
    lines += on
    (HERE / f"{report.name}.md").write_text("\n".join(lines) + "\n")
    return [row(report.name, "", question, answer, made_by), *others]


def printed_page(report: Report) -> tuple[str, str, str, list[str]]:
    """Return question, answer, how it came about, and lines of a page of what a program printed."""
    text = f"{report.data.read_text().strip()}\n"
    lines = [line for line in text.splitlines() if report.answers and report.answers in line]
    answer = lines[0] if lines else text.partition("VERDICT\n")[2].partition(".\n")[0] + "."
    text = text.replace(f"{answer}\n", "", 1).strip() if lines else text.strip()
    text = text if "\n|" in text else f"```text\n{text}\n```"
    answer = " ".join(answer.lstrip("-# ").split())
    made_by = "simulated" if report.simulated else f"measured{' on emulated hosts' if report.root else ''}"
    return report.question, answer, made_by, [f"# {report.question}", "", "## Answer", "", answer, "", text]


def recorded_page(report: Report) -> tuple[str, str, str, list[str]]:
    """Return question, answer, how it came about, and lines of a page of records, and write its figure."""
    from hpcdl.report import contents
    from hpcdl.report.formats.cells import markdown
    from hpcdl.report.formats.document import Document
    from hpcdl.report.formats.figure import standalone
    from hpcdl.report.formats.writers import markdown as written
    from hpcdl.report.run.declaration import badges

    found, _, (head, main, *others) = page_of(report, report.data, ROWS)
    decisions = claims_of(report, found)
    if answer := answer_of(report, decisions):
        head = replace(head, paragraphs=[answer], points=[], badges=head.badges or badges(found.records))
        known = contents.answers(found)  # by other rules than the claims'
        told = [*known.first.values(), *known.others.values()]
        said = {line for one in told for line in (one.headline, *one.details)}
        main = replace(main, paragraphs=[note for note in main.paragraphs if note not in said])
    text = in_the_tree(written([Document(found.question, [head, replace(main, paragraphs=[])])]))
    charts = [*over_ranks(report, decisions), *over_rates(report), *main.charts]
    chart = next((one for one in charts if one.title.casefold().startswith(report.figure.casefold())), None)
    if chart is not None:
        (HERE / f"{report.name}.svg").write_bytes(standalone(chart, "svg"))
        image = f"![{markdown(chart.title)}]({report.name}.svg)"
        text = text.replace(f"## {main.title}\n", f"{image}\n\n## {main.title}\n", 1)
    letters = [
        f"{name}: {words}."
        for name, words in found.settings.rows
        if words and re.search(r"\b[A-Z]$", name) and re.search(rf"\b{re.escape(name)} *[:,|]", text)
    ]
    lines = text.rstrip().splitlines()
    lines += [line for note in [*letters, *main.paragraphs] for line in ("", markdown(note))]
    lines += in_the_tree(written([Document("", others)])).strip().splitlines()[1:] if others else []
    if decisions and not report.of:
        limits = (dict.fromkeys(found.clause.limit for found in one.found) for one in decisions)
        claims = [
            f"{one.verdict.sentence} Limit: {' or '.join(limit)}."
            for one, limit in zip(decisions, limits, strict=True)
        ]
        lines += ["", "## Claims of the sources", "", *(f"- {markdown(claim)}" for claim in claims)]
    return found.question, head.paragraphs[0], how(found), lines


def in_the_tree(text: str) -> str:
    """Return a text that calls the page of a run folder, which the tree does not have, by a name."""
    return text.replace("report.html also", "The whole report also").replace("report.html", "the whole report")


def agree(other: Path) -> int:
    """Write the number of times that agree with another measurement, in whose folder ``data`` they are.

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
    AGREEMENT.write_text("".join(f"| {' | '.join(cells)} |\n" for cells in table))
    return 0


def claims_page() -> str:
    """Write the page of the claims; return its first sentence."""
    command = [sys.executable, "-m", "hpcdl", "claims", os.path.relpath(DATA, HERE), "-o", "claims.md"]
    subprocess.run(command, cwd=HERE, stdout=subprocess.DEVNULL, check=False)  # an open claim is exit code 3
    text = (HERE / "claims.md").read_text()
    if unfinished := [name for name, facts in made().items() if "finished" in facts]:
        line = f"Not finished: measurements of {', '.join(unfinished)}. Their claims rest on the cases until now."
        text = text.replace("## Verdict\n\n", f"{line}\n\n## Verdict\n\n", 1)
        (HERE / "claims.md").write_text(text)
    return text.partition("## Verdict\n\n")[2].partition("\n")[0]


def gpu_page() -> None:
    """Write on the page of the GPU which files of its path changed since the commit that it was measured at."""
    page = HERE / "gpu.md"
    if not page.exists():
        return
    text = page.read_text().partition(f"\n{CHANGED}\n")[0].rstrip()
    measured_at = re.findall(r"\bcommit ([0-9a-f]{8})\b", text)[-1]
    try:
        names = git("diff", "--name-only", "--no-renames", measured_at, "--", *GPU_PATH).splitlines()
    except subprocess.CalledProcessError:  # a checkout without that commit
        return
    there = [name for name in names if (ROOT / name).exists()]
    lines = [
        *(text, "", CHANGED, ""),
        f"The numbers are of commit {measured_at}. After it {len(there)} files of the GPU path changed or came,",
        f"and {len(names) - len(there)} went. As they are now they have not run on a GPU:",
        *("", *(f"- `{name}`" for name in there)),
    ]
    page.write_text("\n".join(lines if names else [text]) + "\n")


def render() -> int:
    """Write the pages of all measured reports, and the README."""
    facts, rows = made(), {group: list[str]() for group in GROUPS}
    for report in (one for one in reports([]) if not one.of):
        if report.name in facts and facts[report.name].get("finished", True) and report.data.exists():
            rows[report.group] += write_page(report, facts)
        else:
            rows[report.group].append(f"| {report.name} | {question_of(report)} | not measured yet | - |")
    for group, name, question, answer in OTHERS:
        rows[group].append(row(name, "", question, answer or claims_page(), "measured" if answer else "-"))
    gpu_page()
    text = HEAD
    for group, lines in rows.items():
        table = ["| report | question | answer | how |", "| --- | --- | --- | --- |", *lines]
        text += "\n".join(["", f"## {group}", "", *table, ""])
    text += TWICE + AGREEMENT.read_text() if AGREEMENT.exists() else ""
    text += MOVED + moved()
    (HERE / "README.md").write_text(text)
    return OK


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", "--for", minutes, runs, *names]:
            sys.exit(measure(Path(runs).resolve(), names, float(minutes)))
        case ["measure", runs, *names]:
            sys.exit(measure(Path(runs).resolve(), names))
        case ["trials", "--for", minutes, runs, *names]:
            sys.exit(trials(Path(runs).resolve(), names, float(minutes)))
        case ["trials", runs, *names]:
            sys.exit(trials(Path(runs).resolve(), names))
        case ["agree", data]:
            sys.exit(agree(Path(data)))
        case ["render"]:
            sys.exit(render())
        case _:
            sys.exit(__doc__)
