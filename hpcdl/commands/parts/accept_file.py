"""Files of accepted regressions."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from hpcdl.registry import nearest, shortened

if TYPE_CHECKING:
    from pathlib import Path

    from hpcdl.analysis.over_time.change import Accepted

KEYS: Final = ("case", "reason", "expires")


def read_accepted(path: Path) -> list[Accepted]:
    """Read the tables ``[[accept]]``. Raises UsageError, in one line that names the file and the key."""
    from hpcdl.suite import UsageError
    from hpcdl.trace.input_file import parse_toml, read_text

    try:
        toml = parse_toml(read_text(path))
        _check_keys(toml, ("accept",), "")
        tables = toml.get("accept", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ValueError("accept: must be tables, [[accept]]")  # noqa: TRY301
        return [_accepted(table, f"[[accept]] {number}: ") for number, table in enumerate(tables, 1)]
    except OSError as error:
        raise UsageError(f"--accept {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"--accept {path}: {' '.join(str(error).split())}") from None


def _accepted(table: dict[str, Any], where: str) -> Accepted:
    from hpcdl.analysis.over_time.change import Accepted

    _check_keys(table, KEYS, where)
    for key in KEYS:
        if key not in table:
            raise ValueError(f"{where}{key}: is missing")
    for key in KEYS[:2]:
        if not isinstance(table[key], str) or not table[key].strip():
            raise ValueError(f"{where}{key}: must be a text, not {shortened(table[key])}")
    expires = table["expires"]
    if type(expires) is not dt.date:  # a time of day is a date too
        raise ValueError(
            f"{where}expires: must be a date without quotes, such as 2027-01-31, not {shortened(expires)}"
        )
    return Accepted(table["case"], table["reason"], expires)


def _check_keys(table: dict[str, Any], valid: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in valid:
            raise ValueError(f"{where}{key}: unknown key{nearest(key, valid)}")
