"""Vectors that other processes of the same host can map: anonymous files in memory.

An owner makes them with memfd_create(2); others open them under /proc while the owner lives, so nothing is left
behind by a killed process. Linux only.
"""

import mmap
import os
import socket
import weakref
from itertools import count
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Array

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MAX_PLACES: Final = 256
_serials = count(1)


def _host() -> int:
    """A number that is the same for all processes of a host, and for no others."""
    if not hasattr(os, "memfd_create"):
        return os.getpid()
    # Containers may share host name and kernel, but not /proc, by which the memory is opened.
    spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "user")]
    return crc32(f"{socket.gethostname()} {_BOOT.read_text(encoding='ascii')} {spaces}".encode())


class SharedMemory:
    """Vectors of this process that others can map, and the mapped vectors of others."""

    def __init__(self) -> None:
        self.host = _host()
        self._own: dict[int, tuple[int, int, int]] = {}
        """By the first byte's address: length, file descriptor, serial number."""
        self._mapped: dict[tuple[int, int], mmap.mmap] = {}
        self._places: dict[int, tuple[weakref.ref[Array], npt.NDArray[np.int64]]] = {}
        """Places by the identities of arrays that may have ended."""
        self._views: dict[tuple[bytes, np.dtype[Any], int], Array] = {}
        """Arrays of others by place, type and size."""

    def allocate(self, size: int, dtype: npt.DTypeLike = np.float32) -> Array:
        kind = np.dtype(dtype)
        length = max(1, size * kind.itemsize)
        if not hasattr(os, "memfd_create"):
            return np.zeros(size, kind)
        file = os.memfd_create("hpcdl")
        os.ftruncate(file, length)
        memory = mmap.mmap(file, length)
        array: Array = np.frombuffer(memory, kind, size)
        address = array.ctypes.data
        self._own[address] = length, file, next(_serials)
        weakref.finalize(memory, self._forget, address, file)
        return array

    def place(self, array: Array) -> npt.NDArray[np.int64]:
        """Return the place of ``array``, (6,): host, process, file, serial, first byte, 1 (0: not shared)."""
        if (known := self._places.get(id(array))) is not None and known[0]() is array:
            return known[1].copy()
        begin = array.ctypes.data
        place = np.array([self.host, os.getpid(), 0, 0, 0, 0])
        for address, (length, file, serial) in self._own.items():
            if address <= begin <= begin + array.nbytes <= address + length and array.flags.c_contiguous:
                place[2:] = file, serial, begin - address, 1
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        self._places[id(array)] = weakref.ref(array), place
        return place.copy()

    def map(self, place: npt.NDArray[np.int64], like: Array) -> Array:
        key = (place.tobytes(), like.dtype, like.size)
        if (known := self._views.get(key)) is not None:
            return known
        host, process, file, serial, begin, _ = place.tolist()
        if host != self.host:
            raise ValueError("ranks on different hosts share no memory")
        # By serial, not by file: a process reuses the number of a file that it has closed.
        if (process, serial) not in self._mapped:
            try:
                with Path(f"/proc/{process}/fd/{file}").open("r+b", buffering=0) as theirs:
                    self._mapped[process, serial] = mmap.mmap(theirs.fileno(), 0)
            except OSError as error:
                raise ValueError(f"the memory of process {process} cannot be mapped: {error.strerror}") from None
        self._views[key] = view = np.frombuffer(self._mapped[process, serial], like.dtype, like.size, begin)
        return view

    def release(self) -> None:
        self._mapped.clear()
        self._views.clear()

    def _forget(self, address: int, file: int) -> None:
        self._own.pop(address, None)
        os.close(file)


class OneProcess:
    """Shared memory of ranks in one process: all ranks can read every array."""

    def __init__(self) -> None:
        self._exposed = weakref.WeakValueDictionary[int, Array]()

    def allocate(self, size: int, dtype: npt.DTypeLike = np.float32) -> Array:
        return np.zeros(size, dtype)

    def place(self, array: Array) -> npt.NDArray[np.int64]:
        self._exposed[id(array)] = array
        return np.array([0, 0, 0, id(array), 0, 1])

    def map(self, place: npt.NDArray[np.int64], _like: Array) -> Array:
        array: Array = self._exposed[int(place[3])]
        return array

    def release(self) -> None:
        self._exposed.clear()
