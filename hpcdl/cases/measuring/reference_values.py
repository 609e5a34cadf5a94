"""Operands and expected results of collectives: whole numbers, whose sums are exact in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np

from hpcdl.fabric.vectors import partition

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.fabric.comm import Array, Comm


ALIKE: Final = ("allreduce", "allgather", "broadcast")
"""All ranks end with the same vector."""

_PERIOD: Final = 17


class Contents:
    """Of the vector of ``comm.rank``, ``size`` elements of ``dtype``.

    Element i is (i mod 17) + rank before; so is every sum a whole number less than 2^24 up to a thousand ranks,
    and no part is another's.
    """

    def __init__(self, collective: str, comm: Comm, size: int, dtype: npt.DTypeLike) -> None:
        pattern = np.resize(np.arange(_PERIOD, dtype=dtype), size)
        ranks, rank = comm.size, comm.rank
        self.before = pattern + pattern.dtype.type(rank)
        self._where = slice(0, size)
        """Part of the vector that is checked."""
        if collective in ("allreduce", "reduce", "reduce_scatter"):
            self._after: npt.NDArray[Any] = pattern * ranks + ranks * (ranks - 1) // 2
            if collective == "reduce" and rank:
                self._where = slice(0, 0)
            elif collective == "reduce_scatter":
                counts = partition(pattern, ranks).counts
                self._where = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        else:
            self._after = pattern
            parts = partition(self._after, ranks)
            mine = parts[rank].copy()
            for source, part in enumerate(parts if collective != "broadcast" else ()):
                part[:] = (mine if collective == "all_to_all" else part) + source

    def right(self, vector: Array) -> bool:
        """Return True if ``vector`` is the expected result."""
        return np.array_equal(vector[self._where], self._after[self._where])


def reals(rank: int, size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Numbers whose sum depends on the order of adding; other ones on each rank."""
    return np.random.default_rng(rank).standard_normal(size).astype(dtype)


async def alike(comm: Comm, vector: npt.NDArray[Any]) -> bool:
    """Return True if all ranks have the same bits, by their checksums (CRC-32)."""
    sums = await comm.allgather_words(np.array([crc32(vector.data)]))
    return bool((sums == sums[0]).all())
