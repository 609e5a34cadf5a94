"""Read and write the files that options of commands name."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcdl.registry import nearest, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.over_time.regressions import Accepted


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
    from hpcdl.analysis.over_time.regressions import Accepted

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


def rendered(folders: Sequence[Path], forms: Sequence[str], *, launches: bool) -> list[str]:
    """Return the report of the runs in ``folders`` in each of ``forms``; with ``launches`` the runs are pooled.

    Raises UsageError.
    """
    from hpcdl.analysis.run.points import AmbiguousCaseError, pool
    from hpcdl.report.run.render import renderings
    from hpcdl.suite import UsageError
    from hpcdl.trace.recorder import TraceError
    from hpcdl.trace.schema import read

    try:
        runs = [read(folder) for folder in folders]
        return renderings([pool(runs)] if launches else runs, forms)
    except (TraceError, AmbiguousCaseError, ValueError) as error:
        raise UsageError(str(error)) from None


def check_page(output: Path | None, *suffixes: str) -> None:
    """Raise UsageError if the page that -o names has none of the suffixes, or lacks the libraries of HTML."""
    from hpcdl.report.run.render import missing
    from hpcdl.suite import UsageError

    if output is not None and output.suffix not in suffixes:
        raise UsageError(f"-o {output}: must end in {' or '.join(suffixes)}")
    if output is not None and output.suffix == ".html" and missing():
        raise UsageError(f"-o {output}: {missing()}")


def write_output(option: str, file: Path, text: str) -> None:
    """Write ``text`` to the ``file`` that ``option`` names, in UTF-8.

    A regular file is replaced at once, because a collector may read it at any moment. A device, a pipe or the
    target of a link is written to. Raises UsageError.
    """
    from hpcdl.suite import UsageError
    from hpcdl.trace.files import atomic_write

    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
        else:
            with atomic_write(target) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {file}: cannot be written: {error.strerror}") from None
