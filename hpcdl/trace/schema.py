"""The HDF5 files of a run: one closed file per finished case, and ``run.h5``, which holds them all.

Rank 0 only: worker ranks import :mod:`hpcdl.trace.recorder` and nothing else of this folder. Times are
integer nanoseconds on the clock of the rank that wrote them; sizes are bytes. Schema version 2::

    /                       attributes  format "hpcdl", schema (int), content "part" or "run", complete (bool)
    /environment            JSON text: what hpcdl.launch.environment.job found, and what the runner added
    /suite                  the text of the suite file
    /cases/000000           one group per case and launch ("part": exactly one)
                            attributes: the case's fields; None is an empty ("null") attribute
    /cases/000000/steps     (rows,) rank int32, then the columns of hpcdl.trace.recorder.STEP:
                            step, epoch int32; begin, end int64 [ns]; loss float64; correct, images int32;
                            compute_ns, messages, bytes int64; learning_rate float64; input_ns int64
    /cases/000000/events    (rows,) rank int32, then the columns of EVENT:
                            task, label int32; begin, end int64 [ns]; peer int32 (-1: none); bytes int64
    /cases/000000/labels    (labels,) UTF-8: what events.label is an index into
    /cases/000000/evaluations  (rows,) rank int32, then the columns of EVALUATION:
                            step int32; epoch, training_seconds, loss, accuracy float64; samples int64;
                            consensus float64
    /cases/000000/updates   (rows,) rank int32, then the columns of UPDATE:
                            time int64 [ns]; worker int32; version, staleness int64; learning_rate float64
    /cases/000000/ranks     (ranks,) rank int32; dropped, dropped_updates int64 (events and updates not kept);
                            clock_offset_ns int64 (add it to this rank's clock to get rank 0's);
                            memory_bytes int64 (held in vectors; 0: not stated)

Steps, events, evaluations and updates are chunked and compressed (shuffle, gzip).
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import h5py
import numpy as np

from hpcdl.trace.record import CaseRecord, Scalar, TraceError
from hpcdl.trace.recorder import EVALUATION, EVENT, STEP, UPDATE
from hpcdl.trace.replacing import replacing
from hpcdl.trace.run import Run, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt


__all__ = ["SCHEMA", "CaseRecord", "Run", "TraceError", "merge", "read", "write_part"]

SCHEMA: Final = 2
CHUNK: Final = 1 << 15
"""Rows per compressed chunk: 1.3 MB of events."""
RANK: Final = np.dtype(
    [
        ("rank", np.int32),
        ("dropped", np.int64),
        ("dropped_updates", np.int64),
        ("clock_offset_ns", np.int64),
        ("memory_bytes", np.int64),
    ]
)


def write_part(
    path: Path, case: CaseRecord, *, environment: Mapping[str, Any] | None = None, suite_text: str = ""
) -> None:
    """Write one finished case as one closed file; whenever the machine stops, ``path`` is whole or absent.

    ``environment`` and ``suite_text`` make a run that never came to its merge readable on its own.
    Raises TypeError for a case field that is not a scalar, OSError when the disk says no.
    """
    image = io.BytesIO()  # HDF5 crashes at exit when the disk fills under it; a plain write only fails
    with h5py.File(image, "w") as file:
        _head(file, "part", complete=True, environment=environment or {}, suite_text=suite_text)
        _write_case(file.create_group("cases/000000"), case)
    with replacing(Path(path)) as beside:
        beside.write_bytes(image.getbuffer())


def merge(
    parts: Iterable[Path],
    run: Path,
    environment: Mapping[str, Any] | None = None,
    suite_text: str | None = None,
    *,
    complete: bool = True,
) -> None:
    """Copy all ``parts``, in their order, into ``run``; whenever the machine stops, ``run`` is whole or old.

    ``environment`` and ``suite_text`` default to the last part's. ``complete`` says whether every case of the
    suite is there. The parts stay. Raises TraceError for a part that cannot be read, OSError.
    """
    kept: tuple[dict[str, Any], str] = ({}, "")
    with replacing(Path(run)) as beside, h5py.File(beside, "w", locking=False) as file:
        cases = file.create_group("cases")
        for part in map(Path, parts):
            with _opened(part) as source:
                for name in sorted(source["cases"]):
                    source.copy(f"cases/{name}", cases, f"{len(cases):06d}")
                kept = _context(source)
        _head(
            file,
            "run",
            complete=complete,
            environment=kept[0] if environment is None else environment,
            suite_text=kept[1] if suite_text is None else suite_text,
        )


def read(path: str | Path) -> Run:
    """Read a run: its folder, its ``run.h5``, or any single part.

    A folder without ``run.h5`` is read from its ``parts/`` and marked incomplete. Events are read when they
    are asked for. Raises TraceError, one line that names the file, for what is missing, foreign, truncated or
    newer than this program.
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
    tables: dict[str, list[Table]] = {"steps": [], "evaluations": [], "updates": [], "ranks": []}
    environment: dict[str, Any] = {}
    suite_text = ""
    for file in files:
        with _opened(file) as source:
            complete = complete and bool(source.attrs["complete"])
            environment, suite_text = _context(source)
            for name in sorted(source["cases"]):
                group = source["cases"][name]
                places.append((file, name))
                described.append(_fields(group))
                for key, found in tables.items():
                    found.append(_on_common_clock(group, key))
    return Run.of(
        path, described, tables, lambda index: _events(*places[index]), environment, suite_text, complete
    )


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
    _write(group, "events", _with_rank(events, EVENT))
    _write(group, "steps", _with_rank([packed["steps"] for packed in record.ranks], STEP))
    _write(group, "evaluations", _with_rank([packed["evaluations"] for packed in record.ranks], EVALUATION))
    _write(group, "updates", _with_rank([packed["updates"] for packed in record.ranks], UPDATE))
    group["labels"] = np.array(list(numbers), f"S{max(map(len, numbers), default=1)}")
    names = RANK.names or ()
    group["ranks"] = np.array(
        [(rank, *(packed[name] for name in names[1:])) for rank, packed in enumerate(record.ranks)], RANK
    )


def _with_rank(per_rank: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    table = np.empty(sum(map(len, per_rank)), [("rank", np.int32), *dtype.descr])
    begin = 0
    for rank, rows in enumerate(per_rank):
        here = table[begin : begin + len(rows)]
        here["rank"] = rank
        for name in dtype.names or ():
            here[name] = rows[name]
        begin += len(rows)
    return table


def _write(group: h5py.Group, name: str, table: npt.NDArray[Any]) -> None:
    if len(table):
        packing = {"chunks": (min(len(table), CHUNK),), "shuffle": True, "compression": "gzip"}
        group.create_dataset(name, data=table, compression_opts=2, **packing)
    else:
        group.create_dataset(name, data=table)


class _opened:  # noqa: N801 - used as a verb
    """Open a trace for reading; whatever goes wrong while it is open becomes a TraceError naming the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> h5py.File:
        try:
            self._file = h5py.File(self._path, "r", locking=False)
        except OSError as error:
            raise TraceError(f"{self._path}: {_why(self._path, error)}") from None
        found = self._file.attrs.get("format"), self._file.attrs.get("schema")
        if found[0] == "hpcdl" and found[1] == SCHEMA:
            return self._file
        self._file.close()
        if found[0] == "hpcdl":
            raise TraceError(f"{self._path}: schema {found[1]}, but this hpcdl reads schema {SCHEMA}")
        raise TraceError(f"{self._path}: an HDF5 file, but not a trace of hpcdl")

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._file.close()
        if isinstance(error, (OSError, KeyError, ValueError, RuntimeError)):
            raise TraceError(f"{self._path}: damaged trace ({_line(error)})") from error


def _why(path: Path, error: OSError) -> str:
    if not path.exists():
        return "no such file"
    if "truncated" in str(error):
        return "truncated file"
    if isinstance(error, PermissionError):
        return "permission denied"
    return "not an HDF5 file" if not h5py.is_hdf5(path) else f"cannot be opened ({_line(error)})"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _context(source: h5py.File) -> tuple[dict[str, Any], str]:
    return dict(json.loads(source["environment"].asstr()[()])), str(source["suite"].asstr()[()])


def _fields(group: h5py.Group) -> dict[str, Scalar]:
    return {name: _plain(group.attrs[name]) for name in group.attrs}


def _plain(value: Any) -> Scalar:
    if isinstance(value, h5py.Empty):
        return None
    plain: Scalar = value.item() if isinstance(value, np.generic) else value
    return plain


def _on_common_clock(group: h5py.Group, name: str) -> Table:
    table = group[name][()]
    moments = [column for column in ("begin", "end", "time") if column in table.dtype.names]
    if moments and len(table):
        ranks = group["ranks"][()]
        offset = np.zeros(1 + max(ranks["rank"].max(initial=0), table["rank"].max()), np.int64)
        offset[ranks["rank"]] = ranks["clock_offset_ns"]
        for column in moments:
            table[column] += offset[table["rank"]]
    return {column: table[column] for column in table.dtype.names}


def _events(path: Path, name: str) -> tuple[Table, list[str]]:
    with _opened(path) as source:
        group = source["cases"][name]
        return _on_common_clock(group, "events"), [label.decode() for label in group["labels"][()]]
