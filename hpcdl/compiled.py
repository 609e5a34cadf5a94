"""numba's decorator for compiled functions, also where numba can store none of them."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numba
from llvmlite import ir
from numba.core.typing import Signature

F = TypeVar("F", bound=Callable[..., object])

Intrinsic: TypeAlias = tuple[Signature, Callable[..., ir.Value]]
"""Signature of a call, and the function that emits its LLVM instructions."""


def njit(**options: bool | str) -> Callable[[F], F]:
    """Return numba's decorator with these options.

    A function is compiled by each process if numba can write to none of its folders: NUMBA_CACHE_DIR, one beside
    the source, and one in the home folder.
    """

    def decorate(function: F) -> F:
        try:
            return numba.njit(**options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder
            return numba.njit(**{**options, "cache": False})(function)  # type: ignore[no-any-return]

    return decorate


def cache_folder(function: object) -> str | None:
    """Return the folder in which numba keeps a compiled function; None if it can write to none."""
    return function._cache.cache_path  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001 - numba has no other
