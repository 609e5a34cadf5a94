"""Networks known by the sizes of their layers: published ones, and the user's own in a CSV file; never trained."""

import csv
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcdl.aggregation.parts.cost import evaluate
from hpcdl.data.parts.dataset import found_file
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import SizedLayer
from hpcdl.registry import MAX_INTEGER, Offer, nearest, shortened
from hpcdl.trace.files import read_csv

if TYPE_CHECKING:
    from _csv import Reader

MAX_LAYERS: Final = 10_000
REST: Final = "rest"
"""Row of the time of a step in no layer: input, loss, the program's own work, and a profiled optimizer."""
COLUMNS: Final = tuple(field.name for field in fields(SizedLayer))
NEEDED: Final = COLUMNS[:3]
FLOP: Final = ("forward_flop", "backward_flop")
SECONDS: Final = ("forward_seconds", "backward_seconds", "batch")
TEXTS: Final = ("name", "group")
OPTIONAL: Final = ("update_seconds", "group")


def layers(shape: Shape = (1,), classes: int = 1, *, path: str = "") -> list[SizedLayer]:  # noqa: ARG001
    """Table of layers in the CSV file ``path``, for replays and predictions only.

    A relative ``path`` that does not exist is searched in $HPCDL_DATA. ``hpcdl layers`` writes such tables, and
    ``hpcdl help models`` describes them. Raises ValueError, one line that names file, line and column.
    """
    if not path:
        raise ValueError("path must be the name of a CSV file")
    return read_table(found_file(Path(path)))


def read_table(path: Path) -> list[SizedLayer]:
    """Return the layers of a CSV file. ValueError, one line that names file, line and column."""
    return parsed_table(read_csv(path), path)


def parsed_table(table: "Reader", source: object) -> list[SizedLayer]:
    """Return the layers of the rows of a table. ValueError, one line that names ``source``, line and column."""
    try:
        return _layers([cell.strip() for cell in row] for row in table if row)
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{source}: line {table.line_num}: {error}") from None


def table_text(layers: Sequence[SizedLayer]) -> str:
    """Return the table of ``layers``, without columns that are stated for none."""
    columns = [name for name in COLUMNS if any(getattr(layer, name) is not None for layer in layers)]
    # a line that begins with "#" is a comment, unless its cells have quotes
    dialect = csv.unix_dialect if any(layer.name.startswith("#") for layer in layers) else csv.excel
    table = csv.DictWriter(text := StringIO(), columns, extrasaction="ignore", dialect=dialect)
    table.writeheader()
    table.writerows(map(asdict, layers))
    return text.getvalue()


def _layers(rows: Iterator[list[str]]) -> list[SizedLayer]:
    """Return the layers of the rows of a table, the first of which has the names of the columns."""
    columns, layers = next(rows, []), dict[str, SizedLayer]()
    given = [group for group in (FLOP, SECONDS) if {*group} & {*columns}] or [FLOP]
    for name in (*NEEDED, *(name for group in given for name in group)):
        if name not in columns:
            raise ValueError(f"column {name!r} is missing")
    for name in columns:
        if name not in COLUMNS or columns.count(name) > 1:
            raise ValueError(f"column {shortened(name)} is unknown or there twice{nearest(name, COLUMNS)}")
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"has {len(row)} cells, but there are {len(columns)} columns")
        layer = SizedLayer(**{name: _value(name, text) for name, text in zip(columns, row, strict=True)})
        if layer.name in layers or len(layers) == MAX_LAYERS:
            raise ValueError(f"name: {layer.name!r} is there twice, or is one of more than {MAX_LAYERS} layers")
        layers[layer.name] = layer
    if not 0 < sum(layer.parameters for layer in layers.values()) < MAX_INTEGER:
        raise ValueError("parameters: a network needs some, and fewer than 2^63")
    return [*layers.values()]


def _value(name: str, text: str) -> Any:
    if not text and name in OPTIONAL:
        return None
    if name in TEXTS:
        if not text.isprintable() or not text:
            raise ValueError(f"{name}: must be a text, not {shortened(text)}")
        return text
    kind, least = "number" if "seconds" in name else "whole number", int(name == "batch")
    try:
        number = int(text) if text.isdecimal() else float(text)  # a float rounds whole numbers above 2^53
    except ValueError:
        number = -1
    if not least <= number < MAX_INTEGER or (kind != "number" and number % 1):
        raise ValueError(f"{name}: must be a {kind} from {least}, not {shortened(text)}")
    return number if kind == "number" else int(number)


def _published(name: str, table: dict[str, Any]) -> Offer:
    """Return a network of ``published_sizes.toml``; the rows of a block are one group."""
    blocks = [(f"block{number}", table["block"]) for number in range(1, 1 + table["blocks"])]

    def model(shape: Shape = tuple(table["shape"]), classes: int = table["classes"]) -> list[SizedLayer]:
        layers, numbers = [], {"shape": shape, "classes": classes}
        for group, rows in (("", table["before"]), *blocks, ("", table["after"])):
            for row, *formulas in rows:
                parameters, activations, multiply_adds = (int(evaluate(text, numbers)) for text in formulas)
                sizes = parameters, activations, 2 * multiply_adds, 4 * multiply_adds
                layers.append(SizedLayer(f"{group}_{row}".strip("_"), *sizes, group=group or None))
        return layers

    model.__name__, model.__doc__ = name, table["about"]
    return model


_PUBLISHED: Final = tomllib.loads(Path(__file__).with_name("published_sizes.toml").read_text("utf-8"))
OFFERS: Final = {"layers": layers, **{name: _published(name, table) for name, table in _PUBLISHED.items()}}
