"""The kernels' sources, and how each is compiled."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "cuda"

NUMBERS: Final = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
"""What ``NUMBER`` is for a precision of activations, see ``number.cuh``."""


def names() -> list[str]:
    """List the sources."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


@cache
def text(name: str) -> str:
    """Return one source as the compiler gets it."""
    return "\n".join((FOLDER / part).read_text(encoding="utf-8") for part in ("number.cuh", f"{name}.cu"))


def options(dtype: str) -> tuple[str, ...]:
    """Return the options for one precision."""
    return ("-std=c++17", f"-DNUMBER={NUMBERS[dtype]}")
