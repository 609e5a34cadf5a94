"""Records of unfinished cases, in the folder of parts of a run.

``DIGEST.started`` exists from the beginning of a case until its part is written; rank 0 writes it. The first rank
that fails writes ``DIGEST.failed``. A case without these files and without a part has not begun.
"""

import json
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from hpcdl.launch.process import STATUS
from hpcdl.trace import files

JOB_ENDED: Final = "the job ended during this case"


class CaseFailedError(Exception):
    """A case failed on this rank, and other ranks may wait for it: the job must end. The message is one line."""


@dataclass(frozen=True)
class Failure:
    """Reason why a case has no result."""

    case: str
    error: str
    rank: int | None = None
    """The first rank that failed; None if no rank recorded a failure."""
    details: str = ""
    """Traceback, or the operations that ranks waited in."""
    by_watchdog: bool = False
    """True if a watchdog recorded the failure, because ranks did not leave the case."""
    command: str | None = None
    """The ``hpcdl run`` that started the ranks; None under another launcher."""

    def __str__(self) -> str:
        return f"{self.case}: {'' if self.rank is None else f'rank {self.rank}: '}{self.error}"


def _record_path(part: Path, suffix: str) -> Path:
    """Return the path of a record, without the number of the case, which changes with the suite."""
    return part.with_name(part.stem.rpartition("-")[2] + suffix)


def begin(part: Path, case: str) -> None:
    """Record that ``case`` begins; its result will be in ``part``."""
    failure = Failure(case, JOB_ENDED, command=os.environ.get(STATUS))
    _write(_record_path(part, ".started"), failure)
    _record_path(part, ".failed").unlink(missing_ok=True)


def end(part: Path) -> None:
    """Remove the records of a finished case."""
    for suffix in (".started", ".failed"):
        _record_path(part, suffix).unlink(missing_ok=True)


def record(part: Path, failure: Failure) -> bool:
    """Record the failure of the case of ``part``; return False if another rank has, or without access to it."""
    try:
        descriptor = os.open(_record_path(part, ".failed"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(replace(failure, command=os.environ.get(STATUS))), file)
    return True


def settle(part: Path, failure: Failure) -> None:
    """Record a failure instead of that of the rank which recorded first: all ranks have left the case."""
    _write(_record_path(part, ".failed"), replace(failure, command=os.environ.get(STATUS)))


def recorded(part: Path) -> Failure | None:
    """Return the recorded failure of the case of ``part``; None if there is none."""
    return _failure(_record_path(part, ".failed"))


def read(parts: Path) -> dict[str, Failure]:
    """Return the failures of unfinished cases, by digest."""
    failures = {}
    for suffix in (".started", ".failed"):  # .failed has the details, and replaces .started
        for path in sorted(parts.glob(f"*{suffix}")):
            if (failure := _failure(path)) is not None:
                failures[path.stem] = failure
    return failures


def _failure(path: Path) -> Failure | None:
    """Return the failure in a file; None without one, and for any other contents, such as half a record."""
    with suppress(ValueError):
        return files.from_json(Failure, files.parse_json(files.read_text(path), path))
    return None


def new(parts: Path, command: str, failed_before: Collection[str]) -> dict[str, Failure]:
    """Return the failures of ``command`` by digest, but of the cases that failed in earlier jobs."""
    failures = read(parts).items()
    return {digest: each for digest, each in failures if each.command == command and digest not in failed_before}


def blame(parts: Path, command: str, rank: int, failed_before: Collection[str]) -> None:
    """Name ``rank``, whose process ended first, in the new failure of ``command`` that no rank recorded."""
    for digest, failure in new(parts, command, failed_before).items():
        if failure.error == JOB_ENDED:
            named = replace(failure, rank=rank, error="its process ended during this case, and the job with it")
            _write(parts / f"{digest}.failed", named)


def _write(path: Path, failure: Failure) -> None:
    with files.atomic_write(path) as temporary:
        temporary.write_text(json.dumps(asdict(failure)), encoding="utf-8")
