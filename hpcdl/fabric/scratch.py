"""Arrays that are kept for the next who needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.fabric.phantom import Phantom, phantom

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Array


def _empty(size: int, like: Array) -> Array:
    if type(like) is Phantom:
        return phantom(size, like.dtype)
    return np.empty_like(like, shape=size)  # dispatched to the array's own library


class Scratch:
    """Arrays kept between uses, per kind and size; ``make(size, like)`` makes a new one."""

    def __init__(self, make: Callable[[int, Array], Array] = _empty) -> None:
        self._make = make
        self._free: dict[tuple[str, str, int], list[Array]] = {}

    def borrow(self, size: int, like: Array) -> _Loan:
        """See :meth:`Comm.scratch`."""
        key = (type(like).__module__, like.dtype.str, size)
        return _Loan(self._free.setdefault(key, []), size, like, self._make)


class _Loan:
    __slots__ = ("_array", "_like", "_make", "_shelf", "_size")

    def __init__(self, shelf: list[Array], size: int, like: Array, make: Callable[[int, Array], Array]) -> None:
        self._make = make
        self._shelf = shelf
        self._size = size
        self._like = like

    def __enter__(self) -> Array:
        self._array = self._shelf.pop() if self._shelf else self._make(self._size, self._like)
        return self._array

    def __exit__(self, *_exception: object) -> None:
        self._shelf.append(self._array)
