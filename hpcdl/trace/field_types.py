"""Types of a record's fields and of the description of an environment.

A file whose checksum fits may have been written by another program. The analysis relies on the types checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from hpcdl.trace.files import from_json
from hpcdl.trace.older_names import spelled_now
from hpcdl.trace.recorder import Scalar

COLUMNS: Final = Path(__file__).parents[1] / "report" / "schema.json"
"""Declares the type of each field, by name; a field that it lacks may be any scalar."""
OWN: Final[dict[str, dict[str, Any]]] = {
    "settings": {"type": ["string", "null"]},  # JSON in a record, an object in --json
    "launch": {"type": ["integer", "null"]},
    "kind": {"type": ["string"]},  # a kind is a file of hpcdl/cases: --json has those of this version
}
"""Fields of a record with a type of their own."""
TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
MAX_RANKS: Final = 1 << 17
MAX_INTEGER: Final = 1 << 63

ENVIRONMENT: Final[dict[str, Any]] = {
    **dict.fromkeys(("date", "key"), str),
    **dict.fromkeys(("ranks", "failed_cases", "cases_not_run"), list[dict[str, Any]]),
    **dict.fromkeys(("counters", "counters_after"), dict[str, Any]),
    "variables": dict[str, str],
    "emulated": dict[str, Any] | None,
}
"""Types of the entries of an environment that are not ``"unknown"``."""
AFFINITY: Final = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*|unknown|")


@cache
def _declared() -> dict[str, dict[str, Any]]:
    text = COLUMNS.read_text(encoding="utf-8")
    return {**json.loads(text)["properties"]["cases"]["items"]["properties"], **OWN}


def check_fields(fields: Mapping[str, Scalar]) -> None:
    """Raise ValueError, naming the field, for a value that is not of its declared type or range."""
    for name, value in fields.items():
        kind, declared = TYPES.get(type(value)), _declared().get(name, {})
        allowed = declared.get("type", [])
        fits = kind in allowed or (kind == "integer" and "number" in allowed) if allowed else kind is not None
        if not fits or (isinstance(value, int) and not -1 <= value < MAX_INTEGER):
            raise ValueError(f"field {name!r}: {value!a:.40} is not {allowed or 'a scalar'}")
        if value not in declared.get("enum", [value]):
            raise ValueError(f"field {name!r}: {value!a:.40} is not one of {declared['enum']}")
    if not 0 <= int(fields["ranks"] or 0) <= MAX_RANKS:
        raise ValueError(f"no case has {fields['ranks']} ranks")
    if not isinstance(json.loads(str(fields.get("settings") or "{}")), dict):
        raise ValueError("field 'settings': not an object of JSON")  # noqa: TRY004 - as for all fields


def environment_of(text: str | bytes) -> dict[str, Any]:
    """Return the description of an environment in JSON. Raises ValueError as :func:`check_environment`."""
    text = spelled_now(text.decode() if isinstance(text, bytes) else text)
    environment = from_json(dict[str, Any], json.loads(text), "environment")
    check_environment(environment)
    return environment


def check_environment(environment: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the entry, for one of another type than hpcdl writes."""
    for name, kind in ENVIRONMENT.items():
        if environment.get(name, "unknown") != "unknown":
            from_json(kind, environment[name], f"environment: {name}")
    for rank in environment.get("ranks", []):
        if not AFFINITY.fullmatch(str(rank.get("affinity", ""))):
            raise ValueError("environment: affinity: not ranges of cores")
