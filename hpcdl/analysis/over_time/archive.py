"""Runs in a folder of run folders; files that are no runs are named and left out."""

import datetime as dt
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from hpcdl.analysis.over_time import csv_series
from hpcdl.analysis.over_time.series import SERIES_TABLES, RunSeries, job_of, series_of
from hpcdl.analysis.run.pooling import Copies, launches_in, with_seeds_of_launches
from hpcdl.trace.files import (
    MAX_DATA,
    atomic_write,
    from_json,
    parse_json,
    read_bytes,
    spelled_now,
    verified_checksum,
)
from hpcdl.trace.log import Facts, described, has_mark, is_log, lines_of
from hpcdl.trace.recorder import SCHEMA, TraceError, analysed
from hpcdl.trace.run import Run, check_environment
from hpcdl.trace.schema import SUFFIXES, read_records

VERSION: Final = 5
"""Of the file; a change of what :mod:`hpcdl.analysis.over_time.series` computes needs another."""


def read_series(path: Path, facts: Facts = (), *, any_schema: bool = False) -> RunSeries:
    """Read the series of a run: its folder, its ``run.h5``, a single part, its records, or a log.

    ``any_schema``: a kept series is enough, although this version cannot read the schema of the run.

    Raises TraceError, in one line that names the file, if it is missing, foreign, damaged or of another schema.
    """
    file, checksum, series = path / "run.h5" if path.is_dir() else path, None, None
    with suppress(OSError):  # reading the run states the error
        checksum = verified_checksum(file)
        series = None if checksum is None else _kept(file, path, checksum, any_schema=any_schema)
    if series is None:
        from hpcdl.trace.schema import read  # late: h5py and pandas are not needed for a series that is kept

        with analysed(path, ValueError):
            series = series_of(read(path, SERIES_TABLES, facts))
        if checksum is not None:
            _keep(series, file, checksum)
    return series if series.identities else replace(series, identities=(checksum or os.path.realpath(file),))


def read_launches(path: Path, facts: Facts = ()) -> list[RunSeries]:
    """Read the series of each launch of a run: records may have several. Raises as :func:`read_series`."""
    if not path.name.endswith(SUFFIXES):
        return [read_series(path, facts)]
    with analysed(path, ValueError):
        launches = [series_of(launch) for launch in launches_in(with_seeds_of_launches(read_records(path)))]
    return [replace(launch, path=f"{path}, launch {number}") for number, launch in enumerate(launches, 1)]


def without_copies(runs: Iterable[RunSeries], copies: Copies) -> list[RunSeries]:
    """Return the runs without the cases that a run before has."""
    kept = []
    for run in runs:
        if new := {run.identities[index] for index in copies.new(run.path, run.identities)}:
            cases = (case for case in run.cases if not case.identity or case.identity in new)
            kept.append(replace(run, cases=tuple(cases)))
    return kept


def is_kept(path: Path) -> bool:
    """Return True if series of a run are kept, perhaps of another version."""
    with suppress(OSError):  # the name is too long
        return _beside(path / "run.h5" if path.is_dir() else path).exists()
    return False


def keep_series(run: Run) -> None:
    """Write the series of a run folder that has just been read, for later comparisons."""
    file = run.path / "run.h5"
    with suppress(OSError):
        if (checksum := verified_checksum(file)) is not None:
            _keep(series_of(run), file, checksum)


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.stem}.series.json")


def _head(checksum: str, body: str, schema: int | str) -> str:
    return f"hpcdl series {VERSION} of schema {schema}: {checksum} {hashlib.sha256(body.encode()).hexdigest()}"


def _keep(series: RunSeries, file: Path, checksum: str) -> None:
    body = json.dumps(asdict(series))
    with suppress(OSError), atomic_write(_beside(file)) as temporary:  # the folder may be read-only
        temporary.write_text(f"{_head(checksum, body, SCHEMA)}\n{body}", encoding="ascii")


def _kept(file: Path, path: Path, checksum: str, *, any_schema: bool) -> RunSeries | None:
    """Return the series that are kept for the run in ``file``; None if there are none, or of another run."""
    try:
        head, _, body = read_bytes(_beside(file), MAX_DATA).decode("ascii").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    schema = re.search(r" of schema (\d{1,9}):", head) if any_schema else None
    if head != _head(checksum, body, schema[1] if schema else SCHEMA):
        return None
    try:
        series = from_json(RunSeries, parse_json(spelled_now(body), file))
        for environment in (series.environment, *series.environments.values()):
            check_environment(environment)
    except ValueError:  # another program wrote it, with a right checksum
        return None
    if not series.identities and head == _head(checksum, body, SCHEMA):
        return None  # an older version kept it; the run shows them
    return replace(series, path=str(path), job=job_of(path, series.environment))  # the folder may have been moved


def read_archive(
    folder: Path, now: dt.datetime, progress: Callable[[int, int], None] | None = None, facts: Facts = ()
) -> tuple[list[RunSeries], list[str], list[str]]:
    """Return the runs below a folder, or in a file, a line for each that does not count, and folders not read.

    A run that cannot be read, is a copy of another, has no date, or one later than ``now`` does not count.
    ``progress`` is called with the number of runs read and of all runs, after each that has no kept series.
    Without runs a line says what the files look like.

    Raises OSError for the folder, and TraceError for a file of series.
    """
    if folder.is_file() and not has_mark(folder):
        return csv_series.read_series(folder), [], []
    unread, unknown = list[str](), list[Path]()
    paths = [folder] if folder.is_file() else list(_runs(folder, unread, unknown))
    new = [path for path in paths if not is_kept(path)]
    runs, skipped, copies = [], list[str](), Copies()
    for path in paths:
        try:
            series = read_series(path, facts, any_schema=True)
        except TraceError as error:
            skipped.append(str(error))
        else:
            reason = _wrong_date(series, now)
            skipped += [f"{path}: {reason}"] if reason else []
            runs += [] if reason else without_copies([series], copies)
        if progress is not None and path in new:
            progress(new.index(path) + 1, len(new))
    if len(skipped) > 2 and not runs:
        skipped = [f"{skipped[0]}; {len(skipped) - 1} others are not read either"]
    if unknown and not runs:
        with suppress(ValueError):
            skipped.append(f"{len(unknown)} files are no runs; {unknown[0]}: {described(lines_of(unknown[0]))}")
    return runs, skipped + copies.lines, unread


def _wrong_date(run: RunSeries, now: dt.datetime) -> str:
    """Return why the date of a run is not one of the past, with its offset from UTC; empty if it is."""
    if not run.date:
        return "has no date"
    if run.began is None:
        return f"has the wrong date {run.date!a}"
    # clocks may differ
    return f"is dated {run.date}, later than now" if run.began > now + dt.timedelta(hours=1) else ""


def _runs(folder: Path, unread: list[str], unknown: list[Path]) -> Iterator[Path]:
    """Yield run folders, and HDF5 files and logs outside of them; symbolic links to folders are not followed.

    Folders that cannot be read are appended to ``unread``, with the reason, and other files to ``unknown``.
    """

    def note(error: OSError) -> None:
        if Path(str(error.filename)) == folder:
            raise error
        unread.append(f"{error.filename}: {error.strerror}")

    for name, folders, files in os.walk(folder, onerror=note):
        if "run.h5" in files or "parts" in folders or is_log(Path(name)):
            folders.clear()
            yield Path(name)
            continue
        folders.sort()
        for path in (Path(name) / file for file in sorted(files) if file[0] != "."):
            if path.suffix == ".h5" or (known := has_mark(path)):
                yield path
            elif known is False:
                unknown.append(path)
