"""Records of runs without their timelines: one compressed JSON file, which any later version reports again.

``hpcdl report RUN... -o NAME.json.gz`` writes one. It has what sections are made of: fields of the cases, tables
of steps, evaluations, updates, residuals and ranks, environments, and the suite's text. It has no events.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.trace.files import MAX_DATA, JsonObject, check_regular, from_json, parse_json, read_bytes
from hpcdl.trace.older_names import spelled_now
from hpcdl.trace.recorder import SCHEMA, TABLES, Rows, TraceError, analysed
from hpcdl.trace.run import READ, Run, check_environment, check_fields, frame, frame_of_cases, no_events

if TYPE_CHECKING:
    import pandas as pd

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
    tables: dict[str, Any] = {name: _frame(name, document["tables"][name], len(described)) for name in READ}
    return Run(
        path,
        frame_of_cases(described),
        **tables,
        environment=document["environment"],
        environments=environments,
        suite=str(document["suite"]),
        complete=bool(document["complete"]),
        described=described,
        _load=lambda _index: no_events(),
    )


def _listed(values: Rows) -> list[Any]:
    """Return a column: of integers the differences, which need fewer digits."""
    listed: list[Any] = (np.diff(values, prepend=0) if values.dtype.kind == "i" else values).tolist()
    return listed


def _frame(name: str, columns: JsonObject, cases: int) -> pd.DataFrame:
    """Return a table. Raises ValueError for other columns than it has, and cases that are not there."""
    types = {INDEX: np.dtype(np.int64), **{key: TABLES[name][key] for key in TABLES[name].names or ()}}
    if columns.keys() - {INDEX} and columns.keys() != types.keys():
        raise ValueError(f"table {name!r}: has other columns than {', '.join(types)}")
    table = {}
    for key in columns:
        whole = types[key].kind == "i"
        values = np.asarray(columns[key], np.int64 if whole else types[key])
        table[key] = (np.cumsum(values) if whole else values).astype(types[key])
    index = table.pop(INDEX)
    if any(len(values) != len(index) for values in table.values()) or not ((index >= 0) & (index < cases)).all():
        raise ValueError(f"table {name!r}: columns of different lengths, or rows of a case that is not there")
    if (np.diff(index) < 0).any():
        raise ValueError(f"table {name!r}: rows of the cases are not in their order")
    return frame([table]).assign(case_index=index)
