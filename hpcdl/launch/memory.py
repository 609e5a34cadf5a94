"""How much memory a node has for its ranks."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.launch.testbed_settings import emulated

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from hpcdl.suite import Case


def node_memory_bytes() -> int:
    """Physical memory, or less where a control group, such as a batch system's or a container's, allows less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):
        for group in _groups():
            with suppress(OSError, ValueError):  # no such file, or "max"
                limits.append(int((group / "memory.max").read_text(encoding="ascii")))
    return min(limits)


def _groups() -> list[Path]:
    """The control group (version 2) of this process and those around it."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    root = Path("/sys/fs/cgroup")
    inner = root / own
    return [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]


def shortage(needed: int, ranks: int, available: int) -> str | None:
    """One line if ``ranks`` ranks that need ``needed`` bytes each do not fit in ``available``, else None."""
    if needed * ranks <= available:
        return None
    each = f"{ranks} ranks x {needed / 1e9:.2f} GB" if ranks > 1 else f"{needed / 1e9:.2f} GB"
    return f"needs at least {each} of memory, and there are {available / 1e9:.2f} GB"


def lack_of_memory(cases: Sequence[Case], hosts: Sequence[Hashable]) -> str | None:
    """One line about a case whose ranks do not fit into their fullest node, None if all fit.

    ``hosts`` says where each rank is, first ranks first.
    """
    for case in cases:
        taken = hosts[: case.processes]
        most = len(taken) if emulated() else max(Counter(taken).values())  # emulated hosts share one memory
        if (line := shortage(case.module.memory_bytes(case.settings), most, node_memory_bytes())) is not None:
            return f"case {case.name!r}: {line} on a node"
    return None
