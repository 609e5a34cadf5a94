"""Records of runs without their timelines: one compressed JSON file, which any later version reports again.

``hpcdl report RUN... -o NAME.json.xz`` writes one. It has what sections are made of: fields of the cases, tables
of steps, evaluations, updates, residuals and ranks, environments, and the suite's text. It has no events.

Tables are packed by columns, integers as their differences. Digits that no section prints are left out: times of a
case are multiples of a power of ten, at most a thousandth of its median step, and losses of batches and norms of
residuals have three digits.
"""

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
TEXT: Final = ({"id": lzma.FILTER_LZMA2, "lc": 4, "pb": 0},)
"""Compression of text: the byte before tells more than the place in a word."""
NORMS: Final = ("gradient_norm", "residual_norm")
RECORDS: Final = "hpcdl records of schema"
"""Key of a file of records whose value is the number of their schema."""
MAX_SMALL: Final = 32 << 20
"""Bytes that any file may unpack to; parsed, they take up to 24 times as much memory."""
MAX_RATIO: Final = 80
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
    for table, name in ((steps, "loss"), *((tables["residuals"], name) for name in NORMS)):
        if name in table:
            table[name] = np.array([float(f"{value:.3g}") for value in table[name]])
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
