"""Records of runs without their timelines: one compressed JSON file, which any later version reports again.

``hpcdl report RUN... -o NAME.json.gz`` writes one. It has what sections are made of: fields of the cases, tables
of steps, evaluations, updates, residuals and ranks, environments, and the suite's text. It has no events.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpcdl.trace.files import MAX_DATA, JsonObject, check_regular, from_json, parse_json, read_bytes
from hpcdl.trace.older_names import spelled_now
from hpcdl.trace.recorder import SCHEMA, TABLES, Rows, TraceError, analysed
from hpcdl.trace.run import READ, RecordedCase, Run, check_environment, check_fields

SUFFIX: Final = ".json.gz"
INDEX: Final = "case_index"
RECORDS: Final = "hpcdl records of schema"
"""Key of a file of records whose value is the number of their schema."""
MAX_SMALL: Final = 32 << 20
"""Bytes that any file may unpack to; parsed, they take up to 24 times as much memory."""
MAX_RATIO: Final = 40
"""Bytes that a larger file may unpack to, by its own; runs have 3 to 22."""


def packed(run: Run) -> bytes:
    """Return the file of a run, or of pooled launches. Raises ValueError if it would be too large to read."""
    document = {
        RECORDS: SCHEMA,
        "suite": run.suite,
        "complete": run.complete,
        "environment": run.environment,
        "environments": run.environments,
        "cases": list(run.described),
        "tables": {
            name: {column: _listed(values.to_numpy()) for column, values in getattr(run, name).items()}
            for name in READ
        },
    }
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    data = gzip.compress(text, mtime=0)
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


def _listed(values: Rows) -> list[Any]:
    """Return a column: of integers the differences, which need fewer digits."""
    listed: list[Any] = (np.diff(values, prepend=0) if values.dtype.kind == "i" else values).tolist()
    return listed


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
    table = np.empty(len(index) if values else 0, TABLES[name])
    for key, column in values.items():
        table[key] = column
    return np.split(table, np.searchsorted(index, range(1, cases))) if cases else []


def _column(listed: list[Any], kind: np.dtype[Any]) -> Rows:
    if kind.kind == "i":
        return np.cumsum(np.asarray(listed, np.int64)).astype(kind)
    return np.asarray(listed, kind)
