"""Sources of the CUDA kernels and their compiler options."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "cuda"

NUMBERS: Final = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
"""Value of the macro ``NUMBER`` for each precision of activations, see ``number.cuh``."""


def names() -> list[str]:
    """Return the names of all sources."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


@cache
def text(name: str) -> str:
    """Return one source with the common header."""
    return "\n".join((FOLDER / part).read_text(encoding="utf-8") for part in ("number.cuh", f"{name}.cu"))


def options(dtype: str) -> tuple[str, ...]:
    """Return the compiler options for one precision."""
    return ("-std=c++17", f"-DNUMBER={NUMBERS[dtype]}")
