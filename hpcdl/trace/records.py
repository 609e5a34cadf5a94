"""Records of runs without their timelines: one compressed JSON file, which any later version reports again.

``hpcdl report RUN... -o NAME.json.xz`` writes one. It has what sections are made of: fields of the cases, tables
of steps, evaluations, updates, residuals and ranks, environments, and the suite's text. It has no events.

Tables are packed by columns. Digits that no section prints are left out: times of a case are multiples of a power
of ten, at most a thousandth of its median step, and losses of batches have four digits. Integers are a list of
their differences, unless they are an object: ``values`` of durations, which need fewer digits than their
differences; of a step's ``end`` its ``length``, of its ``begin`` the ``gap`` since the end of the row before.
``single`` has numbers that single precision holds.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpcdl.trace.files import MAX_DATA, JsonObject, check_regular, from_json, parse_json, read_bytes
from hpcdl.trace.older_names import spelled_now
from hpcdl.trace.recorder import SCHEMA, TABLES, Rows, TraceError, analysed
from hpcdl.trace.run import READ, RecordedCase, Run, check_environment, check_fields

SUFFIX: Final = ".json.xz"
SUFFIXES: Final = (SUFFIX, ".json.gz")
"""Of files that are read: version 1.0 wrote the second."""
INDEX: Final = "case_index"
FINEST: Final = 1000
"""Units of time in a median step, at least."""
RECORDS: Final = "hpcdl records of schema"
"""Key of a file of records whose value is the number of their schema."""
MAX_SMALL: Final = 32 << 20
"""Bytes that any file may unpack to; parsed, they take up to 24 times as much memory."""
MAX_RATIO: Final = 80
"""Bytes that a larger file may unpack to, by its own; runs have 4 to 40."""


def packed(run: Run) -> bytes:
    """Return the file of a run, or of pooled launches. Raises ValueError if it would be too large to read."""
    columns = _rounded(
        {name: {column: values.to_numpy() for column, values in getattr(run, name).items()} for name in READ},
        len(run.described),
    )
    document = {
        RECORDS: SCHEMA,
        "suite": run.suite,
        "complete": run.complete,
        "environment": run.environment,
        "environments": run.environments,
        "cases": list(run.described),
        "tables": {name: _packed_table(table) for name, table in columns.items()},
    }
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    data = lzma.compress(text)
    if len(text) > _limit(len(data)):
        raise ValueError(f"{run.path}: records of {len(text)} bytes, too many to be read again: choose fewer runs")
    return data


def _limit(size: int) -> int:
    """Return the most bytes that a file of ``size`` bytes may unpack to."""
    return min(MAX_DATA, max(MAX_SMALL, MAX_RATIO * size))


def read_records(path: Path) -> Run:
    """Read the file. Raises TraceError, in one line that names it, if it is missing, foreign or damaged."""
    try:
        text = read_bytes(path, _limit(check_regular(path))).decode("ascii")
        document = from_json(JsonObject, parse_json(spelled_now(text), "text"), "records")
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
    return Run(
        path,
        [RecordedCase(fields, *rows) for fields, *rows in zip(described, *tables, strict=True)],
        document["environment"],
        environments,
        str(document["suite"]),
        bool(document["complete"]),
    )


def _rounded(tables: dict[str, dict[str, Rows]], cases: int) -> dict[str, dict[str, Rows]]:
    """Return the tables with times of steps and updates, and losses of batches, to the digits that are kept."""
    steps, units = tables["steps"], np.ones(cases, np.int64)
    if not len(steps.get("end", ())):
        return tables
    length = steps["end"] - steps["begin"]
    for case in np.unique(steps[INDEX]):
        median = np.median(length[steps[INDEX] == case])
        units[case] = 10 ** int(np.log10(max(median / FINEST, 1)))

    def to_unit(name: str, column: str, values: Rows) -> Rows:
        if not (column in {"begin", "end", "time"} or column.endswith("_ns")):
            return values
        unit = units[tables[name][INDEX]]
        return (values + unit // 2) // unit * unit

    kept = {
        name: {column: to_unit(name, column, values) for column, values in tables[name].items()}
        for name in ("steps", "updates")
    }
    kept["steps"]["loss"] = np.array([float(f"{loss:.4g}") for loss in steps["loss"]], np.float32)
    return tables | kept


def _packed_table(columns: dict[str, Rows]) -> JsonObject:
    listed: JsonObject = {}
    if "end" in columns:
        begin, end = columns["begin"], columns["end"]
        listed["begin"] = {"gap": (begin - np.concatenate([[0], end[:-1]])).tolist()}
        listed["end"] = {"length": (end - begin).tolist()}
    return listed | {name: _listed(name, columns[name]) for name in columns if name not in listed}


def _listed(column: str, values: Rows) -> object:
    if values.dtype.kind == "i":
        return {"values": values.tolist()} if column.endswith("_ns") else np.diff(values, prepend=0).tolist()
    single = values.astype(np.float32)
    if np.array_equal(single, values, equal_nan=True):
        return {"single": [float(str(value)) for value in single]}
    return values.tolist()


def _by_case(name: str, columns: JsonObject, cases: int) -> list[Rows]:
    """Return the rows of a table by case. Raises ValueError for other columns, and cases that are not there."""
    types = {INDEX: np.dtype(np.int64), **{key: TABLES[name][key] for key in TABLES[name].names or ()}}
    if columns.keys() - {INDEX} and columns.keys() != types.keys():
        raise ValueError(f"table {name!r}: has other columns than {', '.join(types)}")
    values = {key: _column(listed, types[key]) for key, listed in columns.items()}
    index = values.pop(INDEX)
    if any(len(column) != len(index) for column in values.values()) or not ((index >= 0) & (index < cases)).all():
        raise ValueError(f"table {name!r}: columns of different lengths, or rows of a case that is not there")
    if (np.diff(index) < 0).any():
        raise ValueError(f"table {name!r}: rows of the cases are not in their order")
    _placed(columns, values)
    table = np.empty(len(index) if values else 0, TABLES[name])
    for key, column in values.items():
        table[key] = column
    return np.split(table, np.searchsorted(index, range(1, cases))) if cases else []


def _column(listed: object, kind: np.dtype[Any]) -> Rows:
    """Return a column, of which begin is still the gap, and end the length. Raises ValueError for another form."""
    (how, numbers), *others = listed.items() if isinstance(listed, dict) and listed else [("differences", listed)]
    if others or how not in {"differences", "values", "single", "gap", "length"} or not isinstance(numbers, list):
        raise ValueError(f"{how!r}: no form of a column")
    if kind.kind != "i":
        values = np.asarray(numbers, np.float32 if how == "single" else kind)
        return values.astype(kind)
    values = np.asarray(numbers, np.int64)
    return (np.cumsum(values) if how == "differences" else values).astype(kind)


def _placed(columns: JsonObject, values: dict[str, Rows]) -> None:
    """Make the times of steps of their lengths, and of the gaps between rows."""
    if isinstance(columns.get("end"), dict):
        gap, length = values["begin"], values["end"]
        values["end"] = np.cumsum(gap + length)
        values["begin"] = values["end"] - length
