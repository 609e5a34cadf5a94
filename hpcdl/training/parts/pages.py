"""Pages of vectors in the host's memory: freed between uses, and counted.

Layers are bound to flat vectors for the whole training. A strategy that holds a part of a vector for a while only
gives its pages back to the system and keeps the addresses.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array

_LINUX: Final = sys.platform == "linux"
_LIBRARY: Final = ctypes.CDLL(None)


def release(vector: Array) -> None:
    """Free the pages that lie wholly within a contiguous ``vector``, whose values are lost.

    Its next use gets new pages of zeros. Vectors on a device, and all on other systems than Linux, stay.
    """
    begin, end = _addresses(vector)
    begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        place = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
        # the first is for memory that processes share, and fails elsewhere
        if _LIBRARY.madvise(*place, mmap.MADV_REMOVE):
            _LIBRARY.madvise(*place, mmap.MADV_DONTNEED)


def resident_bytes(vector: Array) -> int:
    """Return the bytes of a contiguous ``vector`` in memory, in whole pages; all of them on a device."""
    begin, end = _addresses(vector)
    if begin == end:
        return int(vector.nbytes)
    begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
    pages = np.zeros(-(-(end - begin) // mmap.PAGESIZE), np.uint8)
    _LIBRARY.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_void_p(pages.ctypes.data))
    return min(int(vector.nbytes), int((pages & 1).sum()) * mmap.PAGESIZE)


def _addresses(vector: Array) -> tuple[int, int]:
    """Return the first address and the end of a vector of numpy on Linux; (0, 0) of any other one."""
    if not _LINUX or type(vector) is not np.ndarray:
        return 0, 0
    return vector.ctypes.data, vector.ctypes.data + vector.nbytes
