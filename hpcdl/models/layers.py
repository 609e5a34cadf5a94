"""A network of the user's own: a table of layers in a CSV file.

The first line names the columns, in any order; each other one is a layer, in the order of the forward pass. Lines
that begin with ``#`` are comments. Columns are the fields of :class:`hpcdl.nn.layers.sized.SizedLayer`: ``name``,
``parameters``, ``activations`` and at least one pair of ``forward_flop``, ``backward_flop`` (of one sample) and
``forward_seconds``, ``backward_seconds`` (of ``batch`` samples). ``update_seconds`` and ``group`` are optional.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from hpcdl.data.parts.dataset import found_file
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layers.sized import SizedLayer
from hpcdl.registry import MAX_INTEGER, nearest, shortened
from hpcdl.trace.files import MAX_TEXT, read_text

MAX_LAYERS: Final = 10_000

COLUMNS: Final = {field.name: str(field.type) for field in fields(SizedLayer)}
FLOP: Final = ("forward_flop", "backward_flop")
SECONDS: Final = ("forward_seconds", "backward_seconds", "batch")
MAY_BE_EMPTY: Final = ("update_seconds", "group")
POSITIVE: Final = ("batch",)


def layers(shape: Shape = (1,), classes: int = 1, *, path: str = "") -> list[SizedLayer]:  # noqa: ARG001
    """Table of layers in the CSV file ``path``, for replays and predictions only.

    A relative ``path`` that does not exist is searched in $HPCDL_DATA. ``hpcdl layers`` writes such tables, and
    ``hpcdl help networks`` describes their columns. The number of parameters is the table's; gradients have random
    values where they are compressed. Raises ValueError, one line that names file, line and column.
    """
    if not isinstance(path, str) or not path:
        raise ValueError(f"path must be the name of a CSV file, not {path!r}")
    return read_table(found_file(Path(path)))


def read_table(path: Path) -> list[SizedLayer]:
    """Return the layers of a CSV file. ValueError, one line that names file, line and column."""
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not a CSV file: not UTF-8 text") from None
    except OSError as error:
        reason = error.strerror or os.strerror(error.errno or 0)
        too_long = f"; a table has at most {MAX_LAYERS} layers" if str(MAX_TEXT) in reason else ""
        raise ValueError(f"{path}: cannot be read: {reason}{too_long}") from None
    table = csv.reader("" if line.startswith("#") else line for line in text.splitlines(keepends=True))
    found: dict[str, SizedLayer] = {}
    try:
        rows = ([cell.strip() for cell in row] for row in table if any(row))
        columns = next(rows, [])
        _check_columns(path, columns)
        for row in rows:
            layer = _layer(f"{path}: line {table.line_num}", columns, row)
            if layer.name in found:
                raise ValueError(f"{path}: line {table.line_num}: name: {layer.name!r} is there twice")
            found[layer.name] = layer
            if len(found) > MAX_LAYERS:
                raise ValueError(f"{path}: line {table.line_num}: a table has at most {MAX_LAYERS} layers")
    except csv.Error as error:
        raise ValueError(f"{path}: line {table.line_num}: is not CSV: {error}") from None
    if not 0 < sum(layer.parameters for layer in found.values()) < MAX_INTEGER:
        raise ValueError(f"{path}: parameters: a network needs at least one, and fewer than 2^63")
    return [*found.values()]


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raise ValueError for a column that is missing, unknown or there twice."""
    has_times = any(name in columns for name in SECONDS)
    has_flop = any(name in columns for name in FLOP) or not has_times
    needed = ["name", "parameters", "activations", *(FLOP if has_flop else ()), *(SECONDS if has_times else ())]
    for name in needed:
        if name not in columns:
            other = "" if has_times or name not in FLOP else f"; or give {', '.join(SECONDS)}"
            raise ValueError(f"{path}: column {name!r} is missing{other}")
    for name in columns:
        if name not in COLUMNS or columns.count(name) > 1:
            wrong = "is there twice" if name in COLUMNS else f"is unknown{nearest(name, COLUMNS)}"
            raise ValueError(f"{path}: column {shortened(name)} {wrong}")


def _layer(place: str, columns: Sequence[str], row: Sequence[str]) -> SizedLayer:
    """Return the layer of a row. ValueError, led by the ``place``."""
    if len(row) != len(columns):
        raise ValueError(f"{place}: has {len(row)} cells, but there are {len(columns)} columns")
    values: dict[str, Any] = {}
    for name, text in zip(columns, row, strict=True):
        if text or name not in MAY_BE_EMPTY:
            try:
                values[name] = _value(name, text)
            except ValueError as error:
                raise ValueError(f"{place}: {name}: {error}") from None
    return SizedLayer(**values)


def _value(name: str, text: str) -> Any:
    """Return the value of a cell. ValueError: it is not one of the column's type, or out of range."""
    kind = COLUMNS[name]
    if "str" in kind:
        if not text or not text.isprintable():
            raise ValueError(f"must be a text, not {shortened(text)}")
        return text
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"must be a number, not {shortened(text)}") from None
    if not 0 <= number < MAX_INTEGER or (name in POSITIVE and not number):
        raise ValueError(f"must be {'more than' if name in POSITIVE else 'at least'} 0, and finite, not {text}")
    if "int" not in kind:
        return number
    if math.trunc(number) != number:
        raise ValueError(f"must be a whole number, not {text}")
    return int(text) if text.isdecimal() else int(number)
