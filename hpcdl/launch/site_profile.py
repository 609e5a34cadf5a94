"""Site profile: settings of a cluster for batch scripts, in at most five answers."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.registry import nearest
from hpcdl.trace.input_file import parse_toml, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class SiteProfile:
    """Settings that all batch scripts of a cluster share."""

    partition: str | None = None
    """Slurm's partition; None: the cluster's default."""
    account: str | None = None
    """The account to be charged; None: the user's default."""
    modules: tuple[str, ...] = ()
    """Environment modules to load."""
    launcher: str = "mpirun"
    """The command that starts ranks, without their number, such as ``srun --mpi=pmi2``."""
    environment: tuple[str, ...] = ()
    """Lines of shell that make ``hpcdl`` available, such as ``source ~/venv/bin/activate``."""


def places(environment: Mapping[str, str]) -> Iterator[Path]:
    """Return where profiles may lie: the user's first, then those of the whole system (XDG base directories)."""
    home = Path(environment.get("HOME", "/"))
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "hpcdl/site.toml"
    for folder in (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg:/etc").split(":"):
        yield Path(folder) / "hpcdl/site.toml"


def site_profile(path: Path | None = None, environment: Mapping[str, str] = os.environ) -> SiteProfile:
    """Read the profile at ``path``, or the first one of :func:`places`, or return the defaults if there is none.

    Raises ValueError, in one line, for a file that cannot be read, an unknown key and a wrong value.
    """
    if path is None:
        path = next((place for place in places(environment) if place.is_file()), None)
        if path is None:
            return SiteProfile()
    try:
        table = parse_toml(read_text(path))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not TOML: {error}") from None
    known = [field.name for field in fields(SiteProfile)]
    for key in table:
        if key not in known:
            raise ValueError(f"{path}: {key}: unknown key{nearest(key, known)}")
    for key, default in vars(SiteProfile()).items():
        read = _lines if isinstance(default, tuple) else _line
        table[key] = read(table[key], f"{path}: {key}") if key in table else default
    return SiteProfile(**table)


def _line(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{where}: must be text of one line, not {value!r}")
    return value


def _lines(value: object, where: str) -> tuple[str, ...]:
    return tuple(_line(one, where) for one in (value if isinstance(value, list) else [value]))
