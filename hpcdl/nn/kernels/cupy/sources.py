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
    """Return one source with the common header.

    A source elsewhere is given by its absolute path without suffix; it has the headers of its folder too.
    """
    source = FOLDER / f"{name}.cu"
    headers = sorted(source.parent.glob("*.cuh")) if source.parent != FOLDER else []
    return "\n".join(part.read_text(encoding="utf-8") for part in (FOLDER / "number.cuh", *headers, source))


def options(dtype: str) -> tuple[str, ...]:
    """Return the compiler options for one precision."""
    return ("-std=c++17", f"-DNUMBER={NUMBERS[dtype]}")
