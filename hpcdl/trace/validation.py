"""Checks of a trace on opening; each raises DamageError, which names the place in the file.

A trace is untrusted input: links out of the file are not followed, and only contents described in
:mod:`hpcdl.trace.layout` are used.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import h5py
import numpy as np

from hpcdl.trace.layout import CHOICES, ENVIRONMENT, FIELDS, IMPLIED, OPTIONAL, REQUIRED, TABLES, misfit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy.typing as npt

    from hpcdl.trace.recorder import Scalar

MAX_PACKED: Final = 1100
"""Largest ratio of unpacked to stored bytes: deflate reaches 1032 (zlib.net/zlib_tech.html)."""
MAX_TIME: Final = 1 << 62
"""Limit of clock readings and offsets (ns); their sum fits 64 bits."""
MAX_NUMBER: Final = 1 << 63
"""Limit of numbers of a case, as in a suite."""
MAX_RANKS: Final = 1 << 31
"""MPI counts ranks in 32 bits."""
MAX_STALENESS: Final = 1 << 24
"""Limit of a gradient's staleness; a rank records 200,000 updates (hpcdl.trace.recorder.UPDATE_LIMIT)."""
COUNTERS: Final = (
    *("wall_ns", "cpu_ns", "busy_ns", "foreign_ns", "foreign_error_ns", "idle_cores", "steal_ns"),
    *("involuntary_switches", "load", "frequency_begin_khz", "frequency_end_khz", "retransmissions"),
)
"""Columns of ranks that may be unknown: -1."""
RANGES: Final[dict[str, tuple[float, float]]] = {
    "staleness": (-MAX_STALENESS, MAX_STALENESS),
    "clock_offset_ns": (-MAX_TIME, MAX_TIME),
    **dict.fromkeys(("begin", "end", "time"), (-MAX_TIME, MAX_TIME)),
    **dict.fromkeys(("training_seconds", "epoch"), (0, MAX_TIME)),
    **dict.fromkeys(COUNTERS, (-1, MAX_TIME)),
}
"""Least and greatest value of columns; of others 0 and infinity."""
UNBOUNDED: Final = frozenset(
    (
        *("loss", "learning_rate", "accuracy", "consensus", "residual_norm", "gradient_norm"),
        *("gradient_cosine", "gradient_error"),
    )
)
"""Columns that may have any value."""
MAX_NESTING: Final = 20
"""Levels of tables and lists in the settings of a case, at most."""
FILTERS: Final = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE}

_LINKS: Final = {h5py.SoftLink: "a soft link", h5py.ExternalLink: "an external link"}


class DamageError(ValueError):
    """A file is not a trace, or damaged; one line."""


def check_file(file: h5py.File) -> list[str]:
    """Check everything except the cases; return the names of the cases."""
    content = scalar(file.attrs["content"], "content")
    if content not in {"part", "run"}:
        raise DamageError(f"content: {content!r} is neither 'part' nor 'run'")
    if not isinstance(scalar(file.attrs["complete"], "complete"), bool):
        raise DamageError("complete: not a bool")
    _check_members(file, ("environment", "suite", "cases"), ("environments",))
    cases = member(file, "cases", h5py.Group)
    names = sorted(cases)
    for name in names:
        if not re.fullmatch(r"\d{6,}", name):
            raise DamageError(f"/cases/{name!r}: not a number")
    if content == "part" and len(names) != 1:
        raise DamageError(f"/cases: a part holds one case, but this one holds {len(names)}")
    return names


def check_case(
    file: h5py.File, name: str, tables: Collection[str] = (*TABLES, *OPTIONAL)
) -> tuple[h5py.Group, dict[str, Any]]:
    """Check the datasets ``tables`` of a case, and its fields; return its group and its fields.

    :func:`rows` checks the rows.
    """
    group = member(member(file, "cases", h5py.Group), name, h5py.Group)
    _check_members(group, (*TABLES, "labels"), OPTIONAL)
    for table, columns in (TABLES | OPTIONAL).items():
        if table in tables and (table in TABLES or table in group):
            rows = dataset(group, table)
            if rows.id.get_type() != _type_id(table):
                raise DamageError(f"{rows.name}: has the columns {rows.dtype}, not {columns}")
    if "events" in tables:
        labels = dataset(group, "labels")
        if labels.dtype.kind != "S":
            raise DamageError(f"{labels.name}: not texts, but {labels.dtype}")
    known, recorded = fields(group), len(group["ranks"])
    if recorded > known["ranks"] or (recorded < known["ranks"] and known.get("network") is None):
        raise DamageError(f"{group.name}: has {known['ranks']} ranks, but traces of {recorded}")
    return group, known


@cache
def _type_id(table: str) -> h5py.h5t.TypeID:
    """Return the HDF5 type of the rows of a table; h5py takes long to translate types."""
    return h5py.h5t.py_create((TABLES | OPTIONAL)[table])


def _check_members(group: h5py.Group, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Raise DamageError unless the members are all ``required`` ones and only ``optional`` ones besides."""
    there = set(group)
    if missing := set(required) - there:
        raise DamageError(f"{group.name}: has no {min(missing)!r}")
    if strange := there - {*required, *optional}:
        raise DamageError(f"{group.name}: has {min(strange)!r}, which does not belong to a trace")


def member(group: h5py.Group, name: str, kind: type[h5py.Group | h5py.Dataset]) -> Any:
    """Return the member ``name`` of ``group``; links are not followed."""
    place = f"{group.name.rstrip('/')}/{name}"
    link = group.get(name, getlink=True)
    if link is None:
        raise DamageError(f"{place}: is missing")
    if not isinstance(link, h5py.HardLink):
        raise DamageError(f"{place}: is {_LINKS.get(type(link), 'a link')}, which a trace may not have")
    thing = group[name]
    if not isinstance(thing, kind):
        raise DamageError(f"{place}: is a {type(thing).__name__.lower()}, not a {kind.__name__.lower()}")
    return thing


def dataset(group: h5py.Group, name: str, dimensions: int = 1) -> h5py.Dataset:
    """Return a dataset whose values are all in the file itself."""
    values = member(group, name, h5py.Dataset)
    if values.external or values.is_virtual:
        raise DamageError(f"{values.name}: has its values in another file, which a trace may not have")
    if values.shape is None or len(values.shape) != dimensions:
        raise DamageError(f"{values.name}: has the shape {values.shape}, not {dimensions} dimensions")
    made = values.id.get_create_plist()
    if strange := {made.get_filter(number)[0] for number in range(made.get_nfilters())} - FILTERS:
        raise DamageError(f"{values.name}: is packed by the filter {min(strange)}, which is not gzip")
    declared = values.size * values.id.get_type().get_size()  # found.nbytes would parse the type
    if declared > MAX_PACKED * values.id.get_storage_size():
        raise DamageError(f"{values.name}: declares {declared} bytes, but the file has fewer")
    return values


def text(group: h5py.Group, name: str) -> str:
    """Return the text in a scalar dataset."""
    values = dataset(group, name, 0)
    kind = h5py.check_string_dtype(values.dtype)
    if kind is None or kind.length is not None:
        raise DamageError(f"{values.name}: not a text, but {values.dtype}")
    return str(values.asstr()[()])


def environment(group: h5py.Group, name: str) -> dict[str, Any]:
    """Return a description of the environment that matches :data:`hpcdl.trace.layout.ENVIRONMENT`."""
    description = json.loads(text(group, name))
    place = misfit(description, ENVIRONMENT, name)
    if place is not None:
        raise DamageError(f"{place}: has an unexpected value")
    return dict(description)


def scalar(value: Any, place: str) -> Scalar:
    """Return an attribute as a plain scalar; None for an empty one."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, h5py.Empty):
        return None
    if not isinstance(plain, (str, int, float, bool)):
        raise DamageError(f"{place}: a {type(plain).__name__}, not a text, number, bool or empty attribute")
    if isinstance(plain, str):
        plain.encode()  # h5py reads invalid UTF-8 as surrogates, which cannot be encoded
    return plain


def fields(group: h5py.Group) -> dict[str, Any]:
    """Return the fields of a case."""
    known: dict[str, Any] = {}
    for name in group.attrs:
        place = f"{group.name}: {name!r}"
        if not isinstance(name, str):
            raise DamageError(f"{place}: not UTF-8")
        name.encode()
        known[name] = scalar(group.attrs[name], place)
        if known[name] is not None:
            _check_field(name, known[name], place)
    for name in (
        *REQUIRED,
        *(field for name, its in IMPLIED.items() if known.get(name) is not None for field in its),
    ):
        if known.get(name) is None:
            raise DamageError(f"{group.name}: has no field {name!r}")
    if known["ranks"] >= MAX_RANKS:
        raise DamageError(f"{group.name}: 'ranks': out of range: {known['ranks']}")
    return known


def _check_field(name: str, value: Any, place: str) -> None:
    types = FIELDS.get(name, (str, int, float, bool))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise DamageError(f"{place}: must be {' or '.join(one.__name__ for one in types)}, not {value!r}")
    least = 0 if types == (int,) else -MAX_NUMBER
    if isinstance(value, int) and not least <= value < MAX_NUMBER:
        raise DamageError(f"{place}: out of range: {value}")
    if name == "settings":
        settings = json.loads(str(value))
        if not isinstance(settings, dict):
            raise DamageError(f"{place}: not a table of settings")
        _check_setting(settings, place)
    if name in CHOICES and value not in CHOICES[name]:
        raise DamageError(f"{place}: must be one of {', '.join(CHOICES[name])}, not {value!r}")


def _check_setting(value: Any, place: str, depth: int = 0) -> None:
    """Raise DamageError for a value that no suite can give: a number out of range, or tables nested deeply."""
    if depth > MAX_NESTING:
        raise DamageError(f"{place}: nested too deeply")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_setting(item, place, depth + 1)
    elif isinstance(value, (int, float)) and not abs(value) < MAX_NUMBER:
        raise DamageError(f"{place}: a number out of range")


def rows(group: h5py.Group, name: str, part: slice = slice(None)) -> npt.NDArray[Any]:
    """Return rows of a table of a case checked by :func:`check_case`; times are on the ranks' own clocks."""
    stored = group[name].id
    begin, end, _ = part.indices(stored.shape[0])
    table = np.empty(max(end - begin, 0), (TABLES | OPTIONAL)[name])
    if not len(table):
        return table
    space = stored.get_space()
    space.select_hyperslab((begin,), table.shape)
    stored.read(h5py.h5s.create_simple(table.shape), space, table, _type_id(name))
    ranges = RANGES | {"rank": (0, len(table if name == "ranks" else group["ranks"]) - 1)}
    if name in {"events", "updates"}:
        ranges |= {"label": (0, len(group["labels"]) - 1)}
        ranges |= {"peer": (-1, group.attrs["ranks"] - 1), "worker": (0, group.attrs["ranks"] - 1)}
    for column in table.dtype.names or ():
        least, most = ranges.get(column, (0, np.inf))
        if column not in UNBOUNDED and not least <= table[column].min() <= table[column].max() <= most:
            raise DamageError(f"{group.name}/{name}: {column}: out of range")
    if name == "ranks" and (table["rank"] != np.arange(len(table))).any():
        raise DamageError(f"{group.name}/{name}: rank: not 0, 1, ...")
    if name in {"steps", "events"} and (table["end"] < table["begin"]).any():
        raise DamageError(f"{group.name}/{name}: ends before it begins")
    return table
