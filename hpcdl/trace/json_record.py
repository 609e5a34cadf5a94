"""Checks of JSON that anybody may have written: against a dataclass, or against a schema of tables."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from hpcdl.trace.layout import Complete

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_COUNTER: Final = 1 << 65
"""Limit of numbers of an environment: counters of network cards have 64 bits."""
Record = TypeVar("Record")


def from_json(kind: type[Record], value: Any) -> Record:
    """Return ``value``, parsed JSON, as the dataclass ``kind``. Raises ValueError, which names the place."""
    return _converted(kind, value, kind.__name__)  # type: ignore[no-any-return]


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _converted(kind: Any, value: Any, place: str) -> Any:
    if kind is Any:
        return value
    if isinstance(kind, UnionType):
        inner = [member for member in get_args(kind) if member is not type(None)]
        return None if value is None and len(inner) < len(get_args(kind)) else _converted(inner[0], value, place)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is dict and isinstance(value, dict):
        return {key: _converted(inside[1], item, f"{place}.{key}") for key, item in value.items()}
    if origin in {tuple, list} and isinstance(value, list):
        return origin(_converted(inside[0], item, f"{place}[{number}]") for number, item in enumerate(value))
    if is_dataclass(kind) and isinstance(value, dict):
        types = _hints(kind)  # type: ignore[arg-type]
        required = {field.name for field in fields(kind) if field.default is MISSING}
        if required <= value.keys() <= types.keys():
            return kind(
                **{  # type: ignore[operator]
                    key: _converted(types[key], item, f"{place}.{key}") for key, item in value.items()
                }
            )
    elif origin is None and (type(value) is kind or (kind is float and type(value) is int)):
        return value
    raise ValueError(f"{place}: not a {getattr(kind, '__name__', kind)}")


def misfit(value: Any, shape: Any, place: str) -> str | None:
    """Return the first place in ``value`` that violates the schema ``shape``; None if it is valid."""
    if isinstance(shape, tuple):
        misfits = [misfit(value, alternative, place) for alternative in shape]
        return None if None in misfits else max(filter(None, misfits), key=len)
    if isinstance(shape, dict):
        if not isinstance(value, dict) or (isinstance(shape, Complete) and shape.keys() - value.keys()):
            return place
        inside = [(key, item, shape.get(key, shape.get("*"))) for key, item in value.items()]
        return _first(misfit(item, its, f"{place}.{key}") for key, item, its in inside if its is not None)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place
        return _first(misfit(item, shape[0], f"{place}[{number}]") for number, item in enumerate(value))
    if isinstance(shape, re.Pattern):
        fits = isinstance(value, str) and shape.fullmatch(value) is not None
    elif isinstance(shape, type):
        fits = isinstance(value, shape) and not isinstance(value, bool)
        fits = fits and (isinstance(value, str) or abs(value) < MAX_COUNTER)
    else:
        fits = value == shape
    return None if fits else place


def _first(misfits: Iterable[str | None]) -> str | None:
    return next(filter(None, misfits), None)
