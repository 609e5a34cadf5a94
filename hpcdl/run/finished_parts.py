"""Read the finished cases of a run folder, for --resume."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcdl.launch.environment import differences

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DAMAGED = ".damaged"
"""Suffix of a part that cannot be read."""


@dataclass
class FinishedParts:
    """The parts of a run folder; each is read once, completely."""

    paths: dict[str, Path] = field(default_factory=dict)
    """By digest of the case; its number changes with the suite, --case and --set."""
    wrong: set[str] = field(default_factory=set)
    """Digests of the cases whose result is wrong."""
    damaged: dict[Path, str] = field(default_factory=dict)
    """Parts that cannot be read, with the reason; their cases run again."""
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Environments of the finished cases, by key."""

    def difference(self, environment: Mapping[str, Any]) -> str | None:
        """Return one line on how ``environment`` differs from that of a finished case; None if it does not."""
        others = [one for key, one in self.environments.items() if key != environment.get("key")]
        if not others:
            return None
        changes = "; ".join(differences(others[0], environment))
        return f"its finished cases ran on another machine or library: {changes}"

    def set_aside_damaged(self) -> list[str]:
        """Rename the damaged parts; return one line for each."""
        lines = []
        for path, why in self.damaged.items():
            path.rename(path.with_name(f"{path.name}{DAMAGED}"))
            lines.append(f"parts/{path.name} is renamed to {path.name}{DAMAGED}, and its case runs again: {why}")
        return lines


def finished_parts(folder: Path) -> FinishedParts:
    """Read the parts in ``folder``."""
    from hpcdl.trace.record import TraceError  # imported late: only rank 0 needs h5py
    from hpcdl.trace.schema import read_part

    found = FinishedParts()
    for path in sorted(folder.glob("*.h5")):
        try:
            fields, environment = read_part(path)
        except TraceError as error:
            found.damaged[path] = str(error).removeprefix(f"{path}: ")
            continue
        digest = str(fields.get("digest"))
        found.paths[digest] = path
        found.environments[str(environment.get("key"))] = environment
        if fields.get("correct") is False:
            found.wrong.add(digest)
    return found
