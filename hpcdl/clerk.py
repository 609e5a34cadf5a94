"""Rank 0's paperwork: parts, log, run.h5 and report of a run folder."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

from hpcdl.fabric.mpi import library_version
from hpcdl.launch.environment import counters, job
from hpcdl.launch.mpirun import on_terminal
from hpcdl.suite import UsageError
from hpcdl.trace.recorder import from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hpcdl.runner import Job
    from hpcdl.suite import Case, Scalar, Suite

BAR: Final = 30
"""Characters of the progress bar."""
CLEAR: Final = "\r\x1b[K"
"""What wipes the bar: carriage return, erase to the end of the line (ECMA-48)."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Have a run folder for oneself; the lock on its log ends with the process. Raises UsageError.

    File systems that know no locks give none.
    """
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"-o {folder}: another hpcdl is running into it at this moment") from None
        except OSError:
            pass
        yield


class Clerk:
    """Rank 0's paperwork."""

    def __init__(self, suite: Suite, folder: Path, work: Job, *, resume: bool, say: Callable[[str], None]) -> None:
        from hpcdl.trace import schema  # late: h5py is rank 0's alone

        self._schema = schema
        self._suite = suite
        self._folder = folder
        self._work = work
        self._say = say
        self._parts = folder / "parts"
        self._began = perf_counter()
        self._failed = False
        self._terminal = on_terminal()
        self._environment = job({**library_version(), "ranks": work.world.size, "nodes": work.nodes})
        self._environment["ranks"] = work.ranks
        self._parts.mkdir(parents=True, exist_ok=True)
        # by digest: the numbers of cases change with the suite, with --case and with --set
        self._there = {path.stem.rpartition("-")[2]: path for path in self._parts.glob("*.h5")} if resume else {}
        (folder / "run.h5").unlink(missing_ok=True)  # an interrupted run's: the parts will soon say more
        self._log = (folder / "log.txt").open("a", encoding="utf-8")
        self.todo = [i for i, case in enumerate(suite.cases) if not (resume and self._finished(i, case))]
        skipped = len(suite.cases) - len(self.todo)
        if skipped:
            self.tell(f"resuming: {skipped} of {len(suite.cases)} cases are there")

    def _part(self, number: int, case: Case) -> Path:
        return self._there.get(case.digest, self._parts / f"{number:04d}-{case.digest}.h5")

    def _finished(self, number: int, case: Case) -> bool:
        with suppress(self._schema.TraceError):
            found = self._schema.read(self._part(number, case))
            self._failed |= any(one.get("correct") is False for one in found.described)
            return True
        return False

    def tell(self, line: str) -> None:
        """Show a line and log it."""
        self._say(f"{CLEAR if self._terminal else ''}{line}")
        print(line, file=self._log, flush=True)

    def begin(self, number: int, case: Case) -> None:
        """Note that ``case`` starts: a bar on a terminal, a line in the log."""
        self._began = perf_counter()
        print(f"{case.name} ...", file=self._log, flush=True)
        if self._terminal:
            total = len(self._suite.cases)
            done = BAR * number // total
            print(f"{CLEAR}[{'#' * done:.<{BAR}}] {number}/{total} {case.name}", end="", flush=True)

    def keep(self, number: int, case: Case, found: dict[str, Scalar], packed: list[bytes]) -> None:
        """Write a finished case."""
        fields = {**case.fields(), "nodes": min(self._work.nodes, case.processes), **found}
        record = self._schema.CaseRecord(fields, [from_bytes(data) for data in packed])
        self._schema.write_part(
            self._part(number, case), record, environment=self._environment, suite_text=self._suite.text
        )
        wrong = fields.get("correct") is False
        self._failed |= wrong
        place = f"[{number + 1}/{len(self._suite.cases)}]"
        seconds = perf_counter() - self._began
        words = ["WRONG RESULT"] if wrong else []
        words += [f"{found.get('died') or 'nobody'} died"] if case.settings.get("failure") else []
        self.tell("  ".join([f"{place} {case.name}: {seconds:.1f} s", *words]))

    def refuse(self, numbers: Sequence[int], why: str) -> None:
        """Say of cases that they cannot be run, which is a failure."""
        self._failed |= bool(numbers)
        for number in numbers:
            self.tell(f"{self._suite.cases[number].name}: not run: {why}")

    def finish(self, unfinished: str | None = None) -> bool:
        """Merge what there is and write the report; tells whether a check failed.

        ``unfinished`` says why there are cases left to run.
        """
        from hpcdl.report.render import render

        self._environment["counters_after"] = counters()
        parts = [self._part(i, case) for i, case in enumerate(self._suite.cases)]
        there = [part for part in parts if part.exists()]
        if unfinished:
            self.tell(f"{unfinished} after {len(there)} of {len(parts)} cases; go on with --resume")
        complete = len(there) == len(parts)
        # what an earlier part of the run did of the cases that were not chosen now
        earlier = (case for case in self._suite.others if case.digest in self._there)
        there += [self._part(0, case) for case in earlier if self._finished(0, case)]
        if there:
            self._schema.merge(
                there, self._folder / "run.h5", self._environment, self._suite.text, complete=complete
            )
            runs = [self._schema.read(self._folder)]
            (self._folder / "report.md").write_text(render(runs, "markdown"), encoding="utf-8")
            self._say(render(runs, "summary"))
            self._say(f"report: {self._folder / 'report.md'}")
        self._log.close()
        return self._failed
