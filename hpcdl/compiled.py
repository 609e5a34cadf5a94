"""numba's decorator for compiled functions, also where numba can store none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def njit(**options: Any) -> Callable[[Any], Any]:
    """Return numba's decorator with these options.

    A function is compiled by each process if numba can write to none of its folders: NUMBA_CACHE_DIR, one beside
    the source, and one in the home folder.
    """

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(**options)(function)
        except RuntimeError:  # no folder
            return numba.njit(**{**options, "cache": False})(function)

    return decorate
