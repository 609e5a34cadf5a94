"""Write a run folder: parts, log, run.h5 and report. Rank 0 alone."""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

from hpcdl.cases.keys.key import varies
from hpcdl.cases.parts.rate_grid import TRIALS
from hpcdl.fabric.mpi.comm import library_version
from hpcdl.launch.environment import describe_job, differences
from hpcdl.launch.mpirun import CLEAR, LAUNCH, on_terminal
from hpcdl.launch.process import STATUS
from hpcdl.run import failed_cases
from hpcdl.run.failed_cases import Failure
from hpcdl.run.job import Job
from hpcdl.suite import Case, Suite
from hpcdl.trace.files import TRIALS_FILE, JsonMapping, JsonObject, open_log
from hpcdl.trace.link_counters import LinkCounters, recorded, total
from hpcdl.trace.recorder import Evaluation, Packed, Scalar, TraceError

BAR: Final = 20
"""Characters of the progress bar."""
_UNITS: Final = (("h", 3600), ("min", 60), ("s", 1))


def progress_line(
    done: float, total: int, name: str, seconds: float, finished: float, columns: int = 80, words: str = ""
) -> str:
    """Return the line after ``done`` of ``total`` cases, which replaces the line before it.

    Rate and time left are those of the cases that this job has ``finished`` in ``seconds``; none without any. Both
    numbers contain the finished share of the present case, and ``words`` say how far it is. The line is shorter
    than ``columns``: a line that wraps cannot be replaced.
    """
    begin, rate = f"[{'#' * int(BAR * done / total):.<{BAR}}] {int(done)}/{total} ", f"  {words}" * bool(words)
    if finished and seconds > 0:
        left = rounded(seconds / finished * (total - done))
        rate += f"  {60 * finished / seconds:.3g} cases/min, {left} left"
    room = max(0, columns - 1 - len(begin) - len(rate))
    shown = name if len(name) <= room else f"{name[: max(0, room - 3)]}..."
    return CLEAR + f"{begin}{shown}{rate}"[: columns - 1]


def rounded(seconds: float) -> str:
    """Return a duration in the largest unit of which it has two: 20 s, 119 s, 2 min."""
    unit, size = next((unit for unit in _UNITS if seconds >= 2 * unit[1]), _UNITS[-1])
    return f"{seconds / size:.0f} {unit}"


DAMAGED = ".damaged"
"""Suffix of a part that cannot be read."""


@dataclass(frozen=True)
class RunOptions:
    """Options of ``hpcdl run`` for the job, and how it shows its progress."""

    show: Callable[[str], None]
    """Print a line for the user."""
    mix_environments: bool = False
    """Allow finished cases of another machine or library."""
    case_timeout: float | None = None
    """Time limit of each case (s), instead of those of the suite."""
    finished: Callable[[Path], None] | None = None
    """Print a case of its part, instead of the line that it has ended and of the summary."""


class FinishedParts:
    """The parts in ``folder``; each is read once, completely."""

    def __init__(self, folder: Path) -> None:
        from hpcdl.trace.schema import read_part  # imported late: only rank 0 needs h5py

        self.paths: dict[str, Path] = {}
        """By digest of the case; its number changes with the suite, --case and --set."""
        self.wrong: set[str] = set()
        """Digests of the cases whose result is wrong."""
        self.damaged: dict[Path, str] = {}
        """Parts that cannot be read, with the reason; their cases run again."""
        self.environments: dict[str, JsonObject] = {}
        """Environments of the finished cases, by key."""
        for path in sorted(folder.glob("*.h5")):
            try:
                fields, environment = read_part(path)
            except TraceError as error:
                self.damaged[path] = str(error).removeprefix(f"{path}: ")
                continue
            digest = str(fields.get("digest"))
            self.paths[digest] = path
            self.environments[str(environment.get("key"))] = environment
            if fields.get("correct") is False:
                self.wrong.add(digest)

    def difference(self, environment: JsonMapping) -> str | None:
        """Return one line on how ``environment`` differs from that of a finished case; None if it does not."""
        others = [described for key, described in self.environments.items() if key != environment.get("key")]
        if not others:
            return None
        changes = "; ".join(differences(others[0], environment))
        return f"its finished cases ran on another machine or library: {changes}"

    def set_aside_damaged(self) -> list[str]:
        """Rename the damaged parts; return one line for each."""
        lines = []
        for path, why in self.damaged.items():
            path.rename(path.with_name(f"{path.name}{DAMAGED}"))
            lines.append(f"parts/{path.name} is renamed to {path.name}{DAMAGED}, and its case runs again: {why}")
        return lines


def draw_of(folder: Path, environment: Mapping[str, str]) -> int:
    """Return the number of the launch, from 0: by the name of its folder, or by its task of a job array.

    A launch that is resumed keeps its number, and so its random compute times and pauses.
    """
    named, task = re.fullmatch(r"launch-(\d+)", folder.name), environment.get("SLURM_ARRAY_TASK_ID", "")
    number = named[1] if named else task
    return max(int(number) - 1, 0) if re.fullmatch(r"\d{1,9}", number) else 0


def part_name(number: int, case: Case) -> str:
    """Return the file name of a new part."""
    return f"{number:04d}-{case.digest}.h5"


class RunFolder:
    """A run folder that is being written."""

    def __init__(self, suite: Suite, folder: Path, job: Job, options: RunOptions) -> None:
        from hpcdl.trace import schema  # imported late: only rank 0 needs h5py

        self._schema = schema
        self._suite = suite
        self._folder = folder
        self._job = job
        self._options = options
        self._parts = folder / "parts"
        self._began = self._started = perf_counter()
        self._added = 0
        """Cases that this job has finished."""
        self._failed = False
        self._page = ""
        """Line with the path of the report."""
        self._now: tuple[int, Case] = 0, suite.cases[0]
        """Present case and its number."""
        self._shown = self._began
        """Time of the last progress bar."""
        self._terminal = on_terminal()
        mpi = {**library_version(), "ranks": job.world.size, "nodes": len({*job.hosts})}
        self._environment = describe_job(mpi)
        self._environment["ranks"] = job.ranks
        self._parts.mkdir(parents=True, exist_ok=True)
        for partial_file in (*folder.glob(".*.partial"), *self._parts.glob(".*.partial")):
            partial_file.unlink(missing_ok=True)  # of a rank that was killed
        self._earlier = FinishedParts(self._parts)
        self._failures: dict[int, Failure] = {}
        """Failures of cases without a result, by number of the case."""
        self._not_run: dict[int, str] = {}
        """Reasons why cases cannot run here, by number of the case."""
        self._retried: list[int] = []
        """Cases that failed in an earlier job, or that it did not finish."""
        self.todo: list[int] = []
        """Cases to run, in this order: those that failed come last, so that the others run first."""
        difference = None if options.mix_environments else self._earlier.difference(self._environment)
        self.refusal = difference and f"-o {folder}: {difference}; choose another folder or add --mix-environments"
        """Reason why the run cannot be resumed here, or None."""
        if not self.refusal:
            self._continue()

    def _continue(self) -> None:
        """Take over the earlier jobs' counters, log and failures, and choose the cases to run."""
        run = self._folder / "run.h5"  # of the interrupted run: the parts will be merged again
        with suppress(TraceError):
            self._environment["link_counters"] = recorded(self._schema.read(run, wanted=()).environment)
        run.unlink(missing_ok=True)
        self._log = os.fdopen(open_log(self._folder / "log.txt"), "a", encoding="utf-8")
        for line in (*self._earlier.set_aside_damaged(), TRIALS.keep(self._folder / TRIALS_FILE)):
            if line:
                self.show(line)
        cases, earlier = self._suite.cases, failed_cases.read(self._parts)
        missing = [number for number, case in enumerate(cases) if not self._finished(case)]
        if len(missing) < len(cases):
            self.show(f"resuming: {len(cases) - len(missing)} of {len(cases)} cases are finished")
        failures = {number: earlier.get(cases[number].digest) for number in missing}
        self._failures = {number: failure for number, failure in failures.items() if failure}
        this = os.environ.get(STATUS, "")  # the command that started this rank
        self._retried = [number for number, failure in self._failures.items() if failure.command != this]
        self.todo = [number for number in missing if number not in self._failures] + self._retried

    def _part(self, number: int, case: Case) -> Path:
        return self._earlier.paths.get(case.digest, self._parts / part_name(number, case))

    def _finished(self, case: Case) -> bool:
        self._failed |= case.digest in self._earlier.wrong
        return case.digest in self._earlier.paths

    def show(self, line: str) -> None:
        """Print a line for the user and append it to the log."""
        self._options.show(f"{CLEAR if self._terminal else ''}{line}")
        print(line, file=self._log, flush=True)

    def begin(self, number: int, case: Case) -> None:
        """Record that ``case`` begins: in parts/, in the log, and in the progress bar of a terminal."""
        self._began = perf_counter()
        if self._retried and number == self._retried[0]:
            self._write()  # a failed case may end the job again
        failed_cases.begin(self._part(number, case), case.name)
        print(f"{case.name} ...", file=self._log, flush=True)
        self._shown, self._now = self._began, (number, case)
        if self._terminal:
            self._show_progress()

    def show_step(self, step: int, evaluations: Sequence[Evaluation]) -> None:
        """Show a step that begins, and the last accuracy, in the progress bar of a terminal, once a second."""
        _, case = self._now
        if self._terminal and perf_counter() - self._shown >= 1 and case.kind == "train":
            self._shown = perf_counter()
            words = f"step {step}/{case.spec.planned_steps}"
            words += f", {evaluations[-1].accuracy:.1%}" if evaluations else ""
            self._show_progress(step / case.spec.planned_steps, words)

    def _show_progress(self, share: float = 0, words: str = "") -> None:
        """``share``: finished part of the present case."""
        (number, case), took, count = self._now, perf_counter() - self._started, len(self._suite.cases)
        done, finished, columns = number + share, self._added + share, shutil.get_terminal_size().columns
        name = f"launch {os.environ[LAUNCH]}: {case.name}" if LAUNCH in os.environ else case.name
        print(progress_line(done, count, name, took, finished, columns, words), end="", flush=True)

    def add(self, number: int, case: Case, measured: dict[str, Scalar], traces: list[Packed]) -> None:
        """Write a finished case."""
        fields = {**case.fields(), "nodes": len({*self._job.hosts[: case.processes]}), **measured}
        if not fields.get("network"):
            fields["clock_error_seconds"] = self._job.clock_error_seconds
        part, record = self._part(number, case), self._schema.CaseRecord(fields, traces)
        self._schema.write_part(part, record, environment=self._environment, suite_text=self._suite.text)
        failed_cases.end(part)
        self._failures.pop(number, None)
        self._added += 1
        wrong = fields.get("correct") is False
        self._failed |= wrong
        count = f"[{number + 1}/{len(self._suite.cases)}]"
        seconds = perf_counter() - self._began
        words = ["WRONG RESULT"] if wrong else []
        words += [f"{measured.get('process_failure') or 'no rank'} failed"] if case.setting("failure") else []
        line = "  ".join([f"{count} {case.name}: {seconds:.1f} s", *words])
        if self._options.finished is None and (words or not self._terminal):
            self.show(line)
            return
        print(line, file=self._log, flush=True)  # a terminal has a line for each launch
        if self._options.finished:
            print(CLEAR if self._terminal else "", end="")
            self._options.finished(part)

    def fail(self, number: int, failures: Sequence[Failure]) -> None:
        """Record that a case failed on some ranks; all ranks have left it."""
        first = self._failures[number] = failures[0]
        failed_cases.settle(self._part(number, self._suite.cases[number]), first)
        others = f" (and on {len(failures) - 1} more ranks)" if len(failures) > 1 else ""
        self.show(f"[{number + 1}/{len(self._suite.cases)}] FAILED {first}{others}")
        print(first.details, file=self._log, end="", flush=True)

    def refuse(self, numbers: Sequence[int], why: str) -> None:
        """Record that cases cannot run here, with the reason; the exit code of the run is then 1."""
        self._not_run.update(dict.fromkeys(numbers, why))
        if numbers:
            self.show(f"{', '.join(self._suite.cases[number].name for number in numbers)}: not run: {why}")

    def finish(self, link_counters: LinkCounters, unfinished: str | None = None) -> bool:
        """Merge the finished cases and write the report; return True if a case failed or a result is wrong.

        ``link_counters``: their growth in this job. ``unfinished`` is the reason why cases are left to run.
        """
        from hpcdl.report.formats.cells import plural
        from hpcdl.report.formats.writers import coloured
        from hpcdl.report.render import next_steps

        earlier = self._environment.get("link_counters", {})
        self._environment["link_counters"] = total([earlier, link_counters])
        cases = self._suite.cases
        missing = {number for number, case in enumerate(cases) if not self._part(number, case).exists()}
        if unfinished:
            count = f"{len(cases) - len(missing)} of {len(cases)} cases"
            self.show(f"{unfinished} after {count}; continue with --resume")
        elif lost := missing - self._failures.keys() - self._not_run.keys():
            self._failed = True
            self.show(f"files of {plural(len(lost), 'case')} have gone from {self._parts}; --resume reruns them")
        summary = self._write()
        if self._terminal and self._added and self._options.finished is None:
            launch = f"launch {os.environ[LAUNCH]}: " if LAUNCH in os.environ else ""
            self.show(f"{launch}{plural(self._added, 'case')}, {rounded(perf_counter() - self._started)}")
        elif summary is not None and LAUNCH in os.environ:
            self.show(f"launch {os.environ[LAUNCH]} has ended: {self._page}")
        if summary is not None and LAUNCH not in os.environ and self._options.finished is None:
            self._options.show(coloured(summary, terminal=self._terminal))
        if self._failures:
            count = f"{len(self._failures)} of {plural(len(cases), 'case')}"
            self.show(f"{count} FAILED; --resume runs them again, after all other cases:")
            for failure in self._failures.values():
                self.show(f"  {failure}")
        if summary is not None and LAUNCH not in os.environ and self._options.finished is None:
            repeat = any(varies(case.spec) or not case.setting("network") for case in cases)
            self._options.show(next_steps(self._page, self._folder, repeat=repeat))
        self._log.close()
        return self._failed or bool(self._failures or self._not_run)

    def _write(self) -> str | None:
        """Merge the finished cases, write the report and return its summary; None if no case is finished."""
        from hpcdl.analysis.over_time.archive import keep_series
        from hpcdl.report.render import end

        cases, failures = self._suite.cases, self._failures.values()
        failed = [{"case": each.case, "rank": each.rank, "error": each.error} for each in failures]
        not_run = [{"case": cases[number].name, "error": why} for number, why in self._not_run.items()]
        self._environment |= {"failed_cases": failed, "cases_not_run": not_run}
        parts = [part for number, case in enumerate(cases) if (part := self._part(number, case)).exists()]
        complete = len(parts) == len(cases)
        # finished cases that --case does not select now
        parts += [self._part(0, case) for case in self._suite.others if self._finished(case)]
        if not parts:
            return None
        self._schema.merge(parts, self._folder / "run.h5", self._environment, self._suite.text, complete=complete)
        run = self._schema.read(self._folder)
        # the run of several launches has the predictions, which rest on all of them
        summary, self._page, broken = end(self._folder, run, predict=LAUNCH not in os.environ)
        self._failed |= bool(broken)
        for line in broken:
            self.show(line)
        keep_series(run)
        return summary
