"""Memory of a node available to its ranks."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def node_memory_bytes() -> int:
    """Return the physical memory (bytes), or the limit of a control group (batch system, container) if smaller."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):
        for group in _groups():
            with suppress(OSError, ValueError):  # no such file, or "max"
                limits.append(int((group / "memory.max").read_text(encoding="ascii")))
    return min(limits)


def _groups() -> list[Path]:
    """Return the control group (version 2) of this process and its parents."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    root = Path("/sys/fs/cgroup")
    inner = root / own
    return [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]


def shortage(needed: int, ranks: int, available: int) -> str | None:
    """Return one line if ``ranks`` ranks of ``needed`` bytes each exceed ``available`` bytes; otherwise None."""
    if needed * ranks <= available:
        return None
    each = f"{ranks} ranks x {needed / 1e9:.2f} GB" if ranks > 1 else f"{needed / 1e9:.2f} GB"
    return f"needs at least {each} of memory, but only {available / 1e9:.2f} GB are available"
