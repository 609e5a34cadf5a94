"""Files of a run: one closed HDF5 file (part) per finished case, and ``run.h5``, which holds all cases; records.

Only rank 0 uses this module. ``README.md`` describes groups, tables and fields. A file whose checksum fits is
whole. It may still be forged, so that nothing in it may lead to another file.

Records are a run without its timelines in one compressed JSON file, which any later version reports again;
``hpcdl report RUN... -o NAME.json.xz`` writes one. It has what sections are made of: fields of the cases, tables
of steps, evaluations, updates and ranks, environments, and the suite's text. Tables are packed by
columns, integers as their differences. Digits that no section prints are left out: times of a case are multiples
of a power of ten, at most a thousandth of its median step; losses and norms have three digits.
"""

import io
import json
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from hpcdl.trace import files
from hpcdl.trace.files import MAX_DATA, JsonObject, check_regular, from_json, parse_json, read_bytes, spelled_now
from hpcdl.trace.log import Facts, is_log, read_log
from hpcdl.trace.recorder import RANK, SCHEMA, TABLES, CaseRecord, Rows, Scalar, TraceError, analysed
from hpcdl.trace.run import READ, RecordedCase, Run, check_environment, check_fields, environment_of, no_events

__all__ = ["SCHEMA", "CaseRecord", "Run", "TraceError", "merge", "read", "write_part"]

UNKNOWN: Final = -1
"""Of a rank's counters that were not recorded."""
CHUNK: Final = 1 << 15
"""Rows per compressed chunk: 1.6 MB of steps."""
MAX_TABLE_RATIO: Final = 400
"""Bytes of a table in memory by those that are stored, at most; 200 where all rows are alike."""
DEPTH: Final = 3
"""Levels of a file: cases, their tables."""


@contextmanager
def open_trace(path: Path, *, verified: bool = False) -> Iterator[h5py.File]:
    """Open a trace for reading; errors in the body that indicate damage become TraceErrors naming the file.

    ``verified``: the checksum was checked at an earlier opening and is not computed again.
    """
    try:
        with _opened(path, verified=verified) as file:
            if not verified:
                _check_contents(file["/"].id, DEPTH)
            yield file
    except TraceError:
        raise
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or _line(error)
        raise TraceError(f"{path}: {reason}") from None
    except Exception as error:  # h5py raises many types, even SystemError, for contents that are no trace
        raise TraceError(f"{path}: damaged trace: {_line(error)}") from error


def _opened(path: Path, *, verified: bool) -> h5py.File:
    files.check_regular(path)
    with path.open("rb") as stream:
        marked = stream.read(len(files.MARK)) == files.MARK
    if not marked:
        raise TraceError(f"{path}: not a trace of hpcdl")
    if not verified and files.verified_checksum(path) is None:
        raise TraceError(f"{path}: damaged or truncated file: its checksum does not fit")
    file = h5py.File(path, "r", locking=False)
    if (schema := file.attrs["schema"]) != SCHEMA:
        file.close()
        raise TraceError(f"{path}: schema {schema}, but this hpcdl reads schema {SCHEMA}")
    return file


def _check_contents(group: h5py.h5g.GroupID, depth: int) -> None:
    """Raise ValueError for links, values in other files, and rows that are declared but not stored.

    Otherwise a file of the reader could appear in a report, and a small file could fill the memory. Handles are
    those below h5py's objects, which take longer: a run may have thousands of cases.
    """
    for name in group:
        path = f"{h5py.h5i.get_name(group).decode().rstrip('/')}/{name.decode()}"
        if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{path}: is a link, which a trace may not have")
        values = h5py.h5o.open(group, name)
        if isinstance(values, h5py.h5g.GroupID):
            if depth == 1:
                raise ValueError(f"{path}: is nested too deeply")
            _check_contents(values, depth - 1)
            continue
        plan = values.get_create_plist()
        if plan.get_external_count() or plan.get_layout() == h5py.h5d.VIRTUAL:
            raise ValueError(f"{path}: has its values in another file, which a trace may not have")
        if not _is_stored(values, plan):
            raise ValueError(f"{path}: declares more rows than the file has")


def _is_stored(values: h5py.h5d.DatasetID, plan: h5py.h5p.PropDCID) -> bool:
    """Return True if all rows of a dataset are in the file."""
    if plan.get_layout() == h5py.h5d.CHUNKED and values.get_num_chunks() * plan.get_chunk()[0] < values.shape[0]:
        return False
    size = values.get_space().get_simple_extent_npoints() * values.get_type().get_size()
    return bool(size <= MAX_TABLE_RATIO * values.get_storage_size())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def write_part(
    path: Path, case: CaseRecord, *, environment: Mapping[str, object] | None = None, suite_text: str = ""
) -> None:
    """Write one finished case to one closed file; after a crash ``path`` is complete or absent.

    With ``environment`` and ``suite_text`` the part is readable without the merged run. The environment's key
    becomes the case's field ``environment_key``. Raises TypeError for a field that is not a scalar, and OSError.
    """
    image = io.BytesIO()  # HDF5 would crash at exit if the disk were full; a plain write raises OSError
    with h5py.File(image, "w", userblock_size=files.SIZE) as file:
        _head(file, environment or {}, suite_text, complete=True)
        here = {"environment_key": str(environment["key"])} if environment and "key" in environment else {}
        _write_case(file.create_group("cases/000000"), CaseRecord({**case.case, **here}, case.ranks))
    with files.atomic_write(Path(path)) as temporary:
        temporary.write_bytes(image.getbuffer())
        files.write_checksum(temporary)


def merge(
    parts: Iterable[Path], run: Path, environment: Mapping[str, object], suite_text: str, *, complete: bool = True
) -> None:
    """Copy all ``parts``, in their order, to ``run``; after a crash ``run`` is the complete new or the old file.

    ``complete`` states that all cases of the suite are included. The parts are kept. Raises TraceError for an
    unreadable part, and OSError.
    """
    others: JsonObject = {}
    with files.atomic_write(Path(run)) as temporary:
        with h5py.File(temporary, "w", locking=False, userblock_size=files.SIZE) as file:
            cases = file.create_group("cases")
            for part in parts:
                with open_trace(part) as source:
                    for name in source["cases"]:
                        source.copy(f"cases/{name}", cases, f"{len(cases):06d}")
                    others |= _environments(source)
            others.pop(str(environment.get("key")), None)
            for key, other in others.items():
                file[f"environments/{key}"] = json.dumps(other)
            _head(file, environment, suite_text, complete=complete)
        files.write_checksum(temporary)


def read(path: str | Path, wanted: Collection[str] = READ, facts: Facts = ()) -> Run:
    """Read a run: its folder, its ``run.h5``, a single part, its records, or a log (:mod:`hpcdl.trace.log`).

    Tables that are not ``wanted`` are empty. A folder without ``run.h5`` is read from its ``parts/`` and marked
    incomplete. Events are read on first use. Raises TraceError, in one line that names the file, if it is missing,
    foreign, damaged or of another schema.
    """
    path = Path(path)
    if path.name.endswith(SUFFIXES):
        return read_records(path)
    if is_log(path):
        return read_log(path, facts)
    paths, complete = [path], True
    if path.is_dir():
        paths = [path / "run.h5"]
        if not paths[0].exists():
            paths, complete = sorted((path / "parts").glob("*.h5")), False
        if not paths:
            raise TraceError(f"{path}: no run.h5 and no finished case in parts/")
    recorded: list[RecordedCase] = []
    environment: JsonObject = {}
    environments: dict[str, JsonObject] = {}
    suite = ""
    for part in paths:
        with open_trace(part) as source:
            complete = complete and bool(source.attrs["complete"])
            environment, suite = environment_of(source["environment"][()]), source["suite"].asstr()[()]
            environments |= _environments(source)
            recorded += [_case(group, part, wanted) for group in source["cases"].values()]
    kept = predictions_in(path if path.is_dir() else path.parent)
    return Run(path, recorded, environment, environments, suite, complete, predictions=kept)


def predictions_in(folder: Path) -> JsonObject:
    """Return the predictions that a folder keeps; none if their file is missing or damaged."""
    with suppress(OSError, ValueError):
        text = read_bytes(folder / PREDICTIONS, MAX_SMALL)
        return from_json(JsonObject, parse_json(text, PREDICTIONS), PREDICTIONS)
    return {}


def _case(group: h5py.Group, path: Path, wanted: Collection[str]) -> RecordedCase:
    """Return a case of the file ``path``; tables that are not ``wanted`` are empty."""
    ranks = _rows(group, "ranks")
    tables = [
        _on_common_clock(_rows(group, name), ranks) if name in wanted else np.empty(0, TABLES[name])
        for name in READ
    ]
    read_events = partial(_events, path, group.name) if _stored(group, "events").shape[0] else no_events
    return RecordedCase(_fields(group), *tables, read_events=read_events)


def read_part(path: Path) -> tuple[dict[str, Scalar], JsonObject]:
    """Return the fields and the environment of the case in a part. Raises TraceError."""
    with open_trace(path) as source:
        return _fields(source["cases/000000"]), environment_of(source["environment"][()])


def _head(file: h5py.File, environment: Mapping[str, object], suite_text: str, *, complete: bool) -> None:
    file.attrs.update(schema=SCHEMA, complete=complete)
    file["environment"] = json.dumps(environment, default=str)
    file["suite"] = suite_text


def _environments(source: h5py.File) -> dict[str, JsonObject]:
    environment = environment_of(source["environment"][()])
    others = {key: environment_of(text[()]) for key, text in source.get("environments", {}).items()}
    return others | ({environment["key"]: environment} if "key" in environment else {})


def _fields(group: h5py.Group) -> dict[str, Scalar]:
    """Return the fields of a case; None for an empty attribute. Raises ValueError for fields of other types."""
    fields: dict[str, Scalar] = {}
    for name, value in group.attrs.items():
        plain = value.item() if isinstance(value, np.generic) else value
        plain = spelled_now(plain) if isinstance(plain, str) else plain
        fields[name] = None if isinstance(plain, h5py.Empty) else plain
    check_fields(fields)
    return fields


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
    _write(group, "events", events)
    for name in ("steps", "evaluations", "updates"):
        _write(group, name, [packed[name] for packed in record.ranks])
    group["labels"] = np.array(list(numbers), f"S{max(map(len, numbers), default=1)}")
    names = RANK.names or ()
    rows = [(rank, *(packed.get(name, UNKNOWN) for name in names[1:])) for rank, packed in enumerate(record.ranks)]
    group["ranks"] = np.array(rows, RANK)


def _write(group: h5py.Group, name: str, per_rank: Sequence[Rows]) -> None:
    """Write a table of the rows of all ranks, with the column ``rank``."""
    table = np.empty(sum(map(len, per_rank)), TABLES[name])
    if len(table):
        table["rank"] = np.repeat(np.arange(len(per_rank)), [len(rows) for rows in per_rank])
        for column in (table.dtype.names or ())[1:]:
            table[column] = np.concatenate([rows[column] for rows in per_rank])
    packing = {"chunks": (min(len(table), CHUNK),), "shuffle": True, "compression": "gzip", "compression_opts": 2}
    group.create_dataset(name, data=table, **(packing if len(table) else {}))


@cache
def _type_id(table: str) -> h5py.h5t.TypeID:
    """Return the HDF5 type of the rows of a table; h5py takes long to translate types."""
    return h5py.h5t.py_create(TABLES[table])


def _stored(group: h5py.Group, name: str) -> h5py.h5d.DatasetID:
    """Return the handle of a table."""
    return h5py.h5d.open(group.id, name.encode())


def _rows(group: h5py.Group, name: str) -> Rows:
    """Return the rows of a table; times are on the ranks' own clocks."""
    stored = _stored(group, name)
    if stored.get_type() != _type_id(name):
        raise ValueError(f"{group.name}/{name}: has other columns than this schema")
    table = np.empty(stored.shape[0], TABLES[name])
    if len(table):
        stored.read(h5py.h5s.ALL, h5py.h5s.ALL, table, _type_id(name))
    return table


def _on_common_clock(table: Rows, ranks: Rows) -> Rows:
    """Return a table with its times on rank 0's clock. Raises ValueError for a rank that is not there."""
    if len(table) and not 0 <= table["rank"].min() <= table["rank"].max() < len(ranks):
        raise ValueError(f"rows of a rank that is not one of {len(ranks)}")
    for column in {"begin", "end", "time"}.intersection(table.dtype.names or ()):
        table[column] += ranks["clock_offset_ns"][table["rank"]]
    return table


def _events(path: Path, case: str) -> tuple[Rows, list[str]]:
    with open_trace(path, verified=True) as source:
        group = source[case]
        events = _on_common_clock(_rows(group, "events"), _rows(group, "ranks"))
        labels = [label.decode() for label in group["labels"][()]]
        if len(events["label"]) and not 0 <= events["label"].min() <= events["label"].max() < len(labels):
            raise ValueError(f"events with a label that is not one of {len(labels)}")
        return events, labels


TABLES_MARK: Final = ',"tables":'
PREDICTIONS: Final = "predictions.json"
"""File of a run folder, or of a folder of launches, with the predictions that were made when it ended."""
SUFFIX: Final = ".json.xz"
SUFFIXES: Final = (SUFFIX, ".json.gz")
"""Of files that are read: version 1.0 wrote the second."""
INDEX: Final = "case_index"
FINEST: Final = 1000
"""Units of time in a median step, at least."""
TEXT: Final = ({"id": lzma.FILTER_LZMA2, "lc": 4, "pb": 0},)
"""Compression of text: the byte before tells more than the place in a word."""
RECORDS: Final = "hpcdl records of schema"
"""Key of a file of records whose value is the number of their schema."""
MAX_SMALL: Final = 32 << 20
"""Bytes that any file may unpack to; parsed, they take up to 24 times as much memory."""
MAX_TEXT_RATIO: Final = 80
"""Bytes that a larger file may unpack to, by its own; runs have 4 to 40."""


def packed(run: Run) -> bytes:
    """Return the file of a run, or of pooled launches. Raises ValueError if it would be too large to read."""
    document = {
        RECORDS: SCHEMA,
        "suite": run.suite,
        "complete": run.complete,
        "environment": run.environment,
        "environments": run.environments,
        "cases": list(run.described),
        "identities": [case.digest() for case in run.recorded],
        "predictions": run.predictions,
        "tables": {
            name: {
                column: (np.diff(values, prepend=0) if values.dtype.kind == "i" else values).tolist()
                for column, values in table.items()
            }
            for name, table in _rounded(run).items()
        },
    }
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    data = lzma.compress(text, filters=TEXT)
    if len(text) > _limit(len(data)):
        raise ValueError(f"{run.path}: records of {len(text)} bytes, too many to be read again: choose fewer runs")
    return data


def _limit(size: int) -> int:
    """Return the most bytes that a file of ``size`` bytes may unpack to."""
    return min(MAX_DATA, max(MAX_SMALL, MAX_TEXT_RATIO * size))


def read_records(path: Path) -> Run:
    """Read the file. Raises TraceError, in one line that names it, if it is missing, foreign or damaged."""
    try:
        text = read_bytes(path, _limit(check_regular(path))).decode("ascii")
        fields, mark, tables = text.partition(TABLES_MARK)  # tables have numbers only, and are most of the text
        document = from_json(JsonObject, parse_json(spelled_now(fields) + mark + tables, "text"), "records")
        schema = from_json(int, document.get(RECORDS), RECORDS)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise TraceError(f"{path}: no records of hpcdl: {reason}") from None
    if not 0 < schema <= SCHEMA:
        raise TraceError(f"{path}: records of schema {schema}, but this hpcdl reads schema {SCHEMA}")
    with analysed(path, ValueError):
        return _run(path, document)


def _run(path: Path, document: JsonObject) -> Run:
    described = from_json(list[dict[str, Any]], document["cases"], "cases")
    environments = from_json(dict[str, JsonObject], document["environments"], "environments")
    for environment in (document["environment"], *environments.values()):
        check_environment(environment)
    for fields in described:
        check_fields(fields)
    tables = [_by_case(name, document["tables"][name], len(described)) for name in READ]
    identities = from_json(list[str], document.get("identities", [""] * len(described)), "identities")
    return Run(
        path,
        [
            RecordedCase(fields, *rows, identity=identity)
            for fields, identity, *rows in zip(described, identities, *tables, strict=True)
        ],
        document["environment"],
        environments,
        str(document["suite"]),
        bool(document["complete"]),
        predictions=from_json(JsonObject, document.get("predictions", {}), "predictions"),
    )


def _rounded(run: Run) -> dict[str, dict[str, Rows]]:
    """Return the columns of the tables, with the digits that are kept."""
    tables = {name: {column: values.to_numpy() for column, values in getattr(run, name).items()} for name in READ}
    steps, units = tables["steps"], np.ones(len(run.described), np.int64)
    length = steps["end"] - steps["begin"] if "end" in steps else np.empty(0)
    for case in np.unique(steps[INDEX]) if len(length) else ():
        median = np.median(length[steps[INDEX] == case])
        units[case] = 10 ** int(np.log10(max(median / FINEST, 1)))
    for table in (steps, tables["updates"]):
        for name in {"begin", "end", "time", "compute_ns", "input_ns"} & table.keys():
            unit = units[table[INDEX]]
            table[name] = (table[name] + unit // 2) // unit * unit
    if "loss" in steps:
        steps["loss"] = np.array([float(f"{value:.3g}") for value in steps["loss"]])
    return tables


def _by_case(name: str, columns: JsonObject, cases: int) -> list[Rows]:
    """Return the rows of a table by case. Raises ValueError for other columns, and cases that are not there."""
    types = {INDEX: np.dtype(np.int64), **{key: TABLES[name][key] for key in TABLES[name].names or ()}}
    if columns.keys() - {INDEX} and columns.keys() != types.keys():
        raise ValueError(f"table {name!r}: has other columns than {', '.join(types)}")
    values = {key: _column(key, listed, types[key].kind) for key, listed in columns.items()}
    index = values.pop(INDEX)
    if any(len(column) != len(index) for column in values.values()) or not ((index >= 0) & (index < cases)).all():
        raise ValueError(f"table {name!r}: columns of different lengths, or rows of a case that is not there")
    if (np.diff(index) < 0).any():
        raise ValueError(f"table {name!r}: rows of the cases are not in their order")
    table = np.empty(len(index) if values else 0, TABLES[name])
    for key, column in values.items():
        table[key] = column
    return np.split(table, np.searchsorted(index, range(1, cases))) if cases else []


def _column(name: str, listed: object, kind: str) -> Rows:
    """Return a column, of integers from their differences. Raises ValueError for values of another type."""
    values = from_json(list[Any], listed, name)
    if not set(map(type, values)) <= ({int} if kind == "i" else {int, float}):
        raise ValueError(f"{name}: has values that are no {'integers' if kind == 'i' else 'numbers'}")
    return np.cumsum(np.asarray(values, np.int64)) if kind == "i" else np.asarray(values, np.float64)
