"""HDF5 files of a run: one closed file (part) per finished case, and ``run.h5``, which holds all cases.

Only rank 0 uses this module. Times are integer nanoseconds on the clock of the recording rank; sizes are bytes.
Schema version 5::

    /                       attributes  format "hpcdl", schema (int), content "part" or "run", complete (bool)
    /environment            JSON text: hpcdl.launch.environment.describe_job, and the runner's additions
    /environments/KEY       the same for each other environment in which cases ran, by its key
    /suite                  text of the suite file
    /cases/000000           one group per case and launch ("part": exactly one)
                            attributes: the case's fields; None is an empty ("null") attribute
    /cases/000000/steps     (rows,) rank int32, then the columns of hpcdl.trace.recorder.STEP:
                            step, epoch int32; begin, end int64 [ns]; loss float64; correct, images int32;
                            compute_ns, messages, bytes int64; learning_rate float64; input_ns int64
    /cases/000000/events    (rows,) rank int32, then the columns of EVENT:
                            task, label int32; begin, end int64 [ns]; peer int32 (-1: none); bytes int64
    /cases/000000/labels    (labels,) UTF-8; events.label is an index into it
    /cases/000000/evaluations  (rows,) rank int32, then the columns of EVALUATION:
                            step int32; epoch, training_seconds, loss, accuracy float64; samples int64;
                            consensus, residual_norm, gradient_cosine, gradient_error float64
    /cases/000000/updates   (rows,) rank int32, then the columns of UPDATE:
                            time int64 [ns]; worker int32; version, staleness int64; learning_rate float64
    /cases/000000/residuals (rows,), only of compressed training: rank int32, then the columns of RESIDUAL:
                            step int32; residual_norm, gradient_norm float64
    /cases/000000/ranks     (ranks,) rank int32; dropped, dropped_updates int64;
                            clock_offset_ns int64 (added to this rank's clock it gives rank 0's);
                            memory_bytes int64 (held in vectors; 0: not recorded);
                            wall_ns, cpu_ns, busy_ns, foreign_ns, foreign_error_ns int64; idle_cores int32;
                            steal_ns, involuntary_switches int64; load float64;
                            frequency_begin_khz, frequency_end_khz, retransmissions int64 (-1: unknown)

Steps, events, evaluations, updates and residuals are chunked and compressed (shuffle, gzip).
"""

from __future__ import annotations

import io
import json
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import h5py
import numpy as np

from hpcdl.trace import validation
from hpcdl.trace.files import SIZE, atomic_write, checksum_matches, has_checksum, write_checksum
from hpcdl.trace.input_file import check_regular
from hpcdl.trace.layout import OPTIONAL, RANK, SCHEMA, TABLES
from hpcdl.trace.recorder import CaseRecord, Scalar, TraceError
from hpcdl.trace.run import Run, Table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt


def newest_unfinished(runs: Path, suite: str, launches: int = 1) -> Path | None:
    """Return the folder of the most recently written unfinished run of ``suite`` in ``runs``, or None.

    With several ``launches``, a run is a folder of folders ``launch-1``, ``launch-2``, ... A run without a
    finished case does not count, because it has nothing to resume.
    """
    by_age = sorted(((_written(folder, launches), folder) for folder in runs.glob("*/")), reverse=True)
    return next(
        (folder for written, folder in by_age if written and _is_unfinished(folder, suite, launches)), None
    )


def _launches(folder: Path, launches: int) -> list[Path]:
    return [folder] if launches == 1 else [folder / f"launch-{number}" for number in range(1, launches + 1)]


def _written(folder: Path, launches: int) -> float:
    """Return the time of a run's last log entry; 0 for a folder that is not a run."""
    logs = [run / "log.txt" for run in _launches(folder, launches)]
    return max((log.stat().st_mtime for log in logs if log.is_file()), default=0.0)


def _is_unfinished(folder: Path, suite: str, launches: int) -> bool:
    states = [_suite_and_state(run) for run in _launches(folder, launches)]
    return any(name == suite for name, _ in states) and not all(complete for _, complete in states)


def _suite_and_state(run: Path) -> tuple[str | None, bool]:
    """Return the name of a run's suite (None without a finished case), and True if all cases are finished."""
    whole = run / "run.h5"
    for file in _files(whole):
        with suppress(TraceError), open_trace(file) as source:  # damaged or foreign: try the next file
            for case in validation.check_file(source)[:1]:
                _, fields = validation.check_case(source, case, tables=())
                return str(fields.get("suite")), file == whole and bool(source.attrs["complete"])
    return None, False


def _files(whole: Path) -> Iterator[Path]:
    if whole.is_file():
        yield whole
    yield from sorted((whole.parent / "parts").glob("*.h5"))


DAMAGE: Final = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError)
"""Exceptions of HDF5 and :mod:`hpcdl.trace.validation` for a file that is damaged or not a trace."""


@contextmanager
def open_trace(path: Path, *, verified: bool = False) -> Iterator[h5py.File]:
    """Open a trace for reading; errors in the body that indicate damage become TraceErrors naming the file.

    ``verified``: the checksum was checked at an earlier opening and is not computed again.
    """
    try:
        check_regular(path)
        summed = has_checksum(path)
        if summed and not verified and not checksum_matches(path):
            raise TraceError(f"{path}: damaged or truncated file: its checksum does not fit")
        if not summed and h5py.is_hdf5(path):
            raise TraceError(f"{path}: an HDF5 file, but not a trace of hpcdl")
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        raise TraceError(f"{path}: {_reason(path, error)}") from None
    with file:
        _check_schema(file, path)
        try:
            yield file
        except DAMAGE as error:
            raise TraceError(f"{path}: damaged trace: {_line(error)}") from error


def _check_schema(file: h5py.File, path: Path) -> None:
    try:
        values = [validation.scalar(file.attrs.get(name, ""), name) for name in ("format", "schema")]
    except DAMAGE as error:
        values = [_line(error), ""]
    if values[0] != "hpcdl":
        raise TraceError(f"{path}: an HDF5 file, but not a trace of hpcdl")
    if values[1] != SCHEMA:
        raise TraceError(f"{path}: schema {values[1]!r}, but this hpcdl reads schema {SCHEMA}")


def _reason(path: Path, error: OSError) -> str:
    if not path.exists():
        return "no such file"
    if "truncated" in str(error):
        return "truncated file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if not path.is_file() and not path.is_dir():
        return "not a regular file"
    return "not an HDF5 file" if not h5py.is_hdf5(path) else f"cannot be opened ({_line(error)})"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


__all__ = ["SCHEMA", "CaseRecord", "Run", "TraceError", "merge", "read", "write_part"]

UNKNOWN: Final = -1
"""Of a rank's counters that were not recorded."""
READ: Final = ("steps", "evaluations", "updates", "residuals", "ranks")
"""Tables that are read with the file; events are read later."""
CHUNK: Final = 1 << 15
"""Rows per compressed chunk: 1.3 MB of events."""


def write_part(
    path: Path, case: CaseRecord, *, environment: Mapping[str, Any] | None = None, suite_text: str = ""
) -> None:
    """Write one finished case to one closed file; after a crash ``path`` is complete or absent.

    With ``environment`` and ``suite_text`` the part is readable without the merged run. The environment's key
    becomes the case's field ``environment_key``. Raises TypeError for a field that is not a scalar, and OSError.
    """
    image = io.BytesIO()  # HDF5 would crash at exit if the disk were full; a plain write raises OSError
    with h5py.File(image, "w", userblock_size=SIZE) as file:
        _head(file, "part", complete=True, environment=environment or {}, suite_text=suite_text)
        here = {"environment_key": environment["key"]} if environment and "key" in environment else {}
        _write_case(file.create_group("cases/000000"), CaseRecord({**case.case, **here}, case.ranks))
    with atomic_write(Path(path)) as temporary:
        temporary.write_bytes(image.getbuffer())
        write_checksum(temporary)


def merge(
    parts: Iterable[Path],
    run: Path,
    environment: Mapping[str, Any] | None = None,
    suite_text: str | None = None,
    *,
    complete: bool = True,
) -> None:
    """Copy all ``parts``, in their order, to ``run``; after a crash ``run`` is the complete new or the old file.

    ``environment`` and ``suite_text`` default to the last part's. ``complete`` states that all cases of the suite
    are included. The parts are kept. Raises TraceError for an unreadable part, and OSError.
    """
    context = _Context({}, "", {})
    with atomic_write(Path(run)) as temporary:
        with h5py.File(temporary, "w", locking=False, userblock_size=SIZE) as file:
            cases = file.create_group("cases")
            for part in map(Path, parts):
                with open_trace(part) as source:
                    for name in validation.check_file(source):
                        source.copy(validation.check_case(source, name)[0], cases, f"{len(cases):06d}")
                    context = context.then(_context(source))
            own = context.environment if environment is None else environment
            for key, other in context.environments.items():
                if key != own.get("key"):
                    file[f"environments/{key}"] = json.dumps(other)
            _head(
                file,
                "run",
                complete=complete,
                environment=own,
                suite_text=context.suite if suite_text is None else suite_text,
            )
        write_checksum(temporary)


def read(path: str | Path, wanted: Collection[str] = READ) -> Run:
    """Read a run: its folder, its ``run.h5``, or a single part. Tables that are not ``wanted`` are empty.

    A folder without ``run.h5`` is read from its ``parts/`` and marked incomplete. Events are read on first use.
    Raises TraceError, in one line that names the file, if it is missing, foreign, damaged or of another schema.
    """
    path = Path(path)
    files, complete = [path], True
    if path.is_dir():
        files = [path / "run.h5"]
        if not files[0].exists():
            files, complete = sorted((path / "parts").glob("*.h5")), False
        if not files:
            raise TraceError(f"{path}: no run.h5 and no finished case in parts/")
    described: list[dict[str, Scalar]] = []
    places: list[tuple[Path, str]] = []
    tables: dict[str, list[Table]] = {name: [] for name in READ}
    context = _Context({}, "", {})
    for file in files:
        with open_trace(file) as source:
            names = validation.check_file(source)
            complete = complete and bool(source.attrs["complete"])
            context = context.then(_context(source))
            for name in names:
                group, fields = validation.check_case(source, name, wanted)
                places.append((file, name))
                described.append(fields)
                ranks = validation.rows(group, "ranks")
                for key, frame in tables.items():
                    there = key in wanted and key in group
                    table = validation.rows(group, key) if there else np.empty(0, (TABLES | OPTIONAL)[key])
                    frame.append(_on_common_clock(table, ranks))
    return Run.of(
        path,
        described,
        tables,
        lambda index: _events(*places[index]),
        context.environment,
        context.environments,
        context.suite,
        complete,
    )


def read_part(path: Path) -> tuple[dict[str, Scalar], dict[str, Any]]:
    """Return the fields and the environment of the case in a part, after checking the whole part.

    Raises TraceError.
    """
    with open_trace(path) as source:
        group, fields = validation.check_case(source, validation.check_file(source)[0])
        for table in group.keys() & {**TABLES, **OPTIONAL}:
            for begin in range(0, len(group[table]), CHUNK):
                validation.rows(group, table, slice(begin, begin + CHUNK))
        return fields, _context(source).environment


def _head(
    file: h5py.File, content: str, *, complete: bool, environment: Mapping[str, Any], suite_text: str
) -> None:
    file.attrs.update(format="hpcdl", schema=SCHEMA, content=content, complete=complete)
    file["environment"] = json.dumps(environment, default=str)
    file["suite"] = suite_text


def _write_case(group: h5py.Group, record: CaseRecord) -> None:
    for name, value in record.case.items():
        plain = value.item() if isinstance(value, np.generic) else value
        if plain is not None and not isinstance(plain, (str, int, float, bool)):
            raise TypeError(f"case field {name!r}: a {type(plain).__name__} is not a scalar")
        group.attrs[name] = h5py.Empty("u1") if plain is None else plain
    numbers: dict[bytes, int] = {}
    events = []
    for packed in record.ranks:
        here = np.array([numbers.setdefault(label, len(numbers)) for label in packed["labels"]], np.int32)
        renumbered = packed["events"].copy()
        renumbered["label"] = here[renumbered["label"]] if len(renumbered) else 0
        events.append(renumbered)
    _write(group, "events", _with_rank(events, TABLES["events"]))
    for name in ("steps", "evaluations", "updates"):
        _write(group, name, _with_rank([packed[name] for packed in record.ranks], TABLES[name]))
    for name, columns in OPTIONAL.items():
        frame = _with_rank([packed[name] for packed in record.ranks], columns)
        if len(frame):
            _write(group, name, frame)
    group["labels"] = np.array(list(numbers), f"S{max(map(len, numbers), default=1)}")
    names = RANK.names or ()
    rows = [(rank, *(packed.get(name, UNKNOWN) for name in names[1:])) for rank, packed in enumerate(record.ranks)]
    group["ranks"] = np.array(rows, RANK)


def _with_rank(per_rank: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    table = np.empty(sum(map(len, per_rank)), dtype)
    begin = 0
    for rank, rows in enumerate(per_rank):
        here = table[begin : begin + len(rows)]
        here["rank"] = rank
        for name in rows.dtype.names or ():
            here[name] = rows[name]
        begin += len(rows)
    return table


def _write(group: h5py.Group, name: str, table: npt.NDArray[Any]) -> None:
    if len(table):
        packing = {"chunks": (min(len(table), CHUNK),), "shuffle": True, "compression": "gzip"}
        group.create_dataset(name, data=table, compression_opts=2, **packing)
    else:
        group.create_dataset(name, data=table)


class _Context(NamedTuple):
    """Contents of a file besides its cases."""

    environment: dict[str, Any]
    suite: str
    environments: dict[str, dict[str, Any]]
    """Environments of all cases, by key."""

    def then(self, later: _Context) -> _Context:
        """Return the context ``later``, with the environments of both."""
        return later._replace(environments=self.environments | later.environments)


def _context(source: h5py.File) -> _Context:
    own = validation.environment(source, "environment")
    others = validation.member(source, "environments", h5py.Group) if "environments" in source else {}
    environments = {key: validation.environment(others, key) for key in others}
    if "key" in own:
        environments[own["key"]] = own
    return _Context(own, validation.text(source, "suite"), environments)


def _on_common_clock(table: npt.NDArray[Any], ranks: npt.NDArray[Any]) -> Table:
    names = table.dtype.names or ()
    for column in ("begin", "end", "time"):
        if column in names and len(table):
            table[column] += ranks["clock_offset_ns"][table["rank"]]
    return {column: table[column] for column in names}


def _events(path: Path, name: str) -> tuple[Table, list[str]]:
    with open_trace(path, verified=True) as source:
        group, _ = validation.check_case(source, name)
        events = _on_common_clock(validation.rows(group, "events"), validation.rows(group, "ranks"))
        return events, [label.decode() for label in group["labels"][()]]
