"""Pages of vectors in the host's memory, which are freed between uses, and counted.

Layers stay bound to flat vectors; only the memory behind the addresses comes and goes.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array

_LIBRARY: Final = ctypes.CDLL(None)


def release(vector: Array) -> None:
    """Free the whole pages of a contiguous ``vector``, which loses its values; its next use gets zeros.

    Vectors on a device, and all on other systems than Linux, stay.
    """
    if type(vector) is np.ndarray and sys.platform == "linux":
        begin = -(-vector.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (vector.ctypes.data + vector.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        for advice in (mmap.MADV_REMOVE, mmap.MADV_DONTNEED) if length > 0 else ():
            # the first is for memory that processes share, and fails elsewhere
            if _LIBRARY.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), advice) == 0:
                return


def resident_bytes(vector: Array) -> int:
    """Return the bytes of a contiguous ``vector`` in memory, in whole pages; all of them where none are freed."""
    if type(vector) is not np.ndarray or sys.platform != "linux":
        return int(vector.nbytes)
    begin, end = vector.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE, vector.ctypes.data + vector.nbytes
    pages = np.zeros(-(-(end - begin) // mmap.PAGESIZE), np.uint8)
    _LIBRARY.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), pages.ctypes.data_as(ctypes.c_void_p))
    return min(int(vector.nbytes), int((pages & 1).sum()) * mmap.PAGESIZE)
