"""Zstandard: a general compressor, for comparison with codes of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.code import check_room

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes
    from hpcdl.fabric.comm import Array

COMPRESSED: Final = 0x80
"""Flag in a message's first byte, beside the number of planes; without it the planes follow as they are."""


class Zstd:
    """Zstandard over byte planes: all lowest bytes of the integers, then all second bytes, and so on (RFC 8878).

    Planes without a non-zero byte are left out.
    """

    words = False

    def __init__(self, *, level: int = 1) -> None:
        """Raise ValueError for a ``level`` outside of 1 to 22, or without the package zstandard."""
        try:
            import zstandard
        except ImportError:
            raise ValueError("code 'zstd' needs zstandard: pip install 'hpcdl[zstd]'") from None
        if not 1 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
            raise ValueError(f"level must be 1 to {zstandard.MAX_COMPRESSION_LEVEL}, not {level}")
        self._compress = zstandard.ZstdCompressor(level=level).compress
        self._decompress = zstandard.ZstdDecompressor().decompress
        self._parameters = zstandard.get_frame_parameters
        self._error = zstandard.ZstdError

    def bound(self, count: int, total: int) -> int:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        return 1 + count * _planes(total)

    def encode(self, integers: Array, wire: Bytes) -> int:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        planes = _planes(int(integers.max(initial=0)))
        check_room(wire, 1 + len(integers) * planes)
        raw = np.ascontiguousarray(integers.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4).T[:planes])
        body, flag = np.frombuffer(self._compress(raw.reshape(-1).data), np.uint8), COMPRESSED
        if len(body) >= raw.size:
            body, flag = raw.reshape(-1), 0
        wire[0] = flag | planes
        wire[1 : 1 + len(body)] = body
        return 1 + len(body)

    def decode(self, message: Bytes, integers: Array) -> None:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        planes = int(message[0]) & ~COMPRESSED if len(message) else -1
        if not 0 <= planes <= 4:
            raise ValueError("zstd code: no number of planes from 0 to 4")
        body, size = message[1:].tobytes(), planes * len(integers)
        if message[0] & COMPRESSED:
            body = self._frame(body, size)
        if len(body) != size:
            raise ValueError(f"zstd code: {len(body)} bytes are not {planes} planes of {len(integers)} integers")
        words = np.zeros((len(integers), 4), np.uint8)
        words[:, :planes] = np.frombuffer(body, np.uint8).reshape(planes, -1).T if size else 0
        integers[:] = words.view("<u4")[:, 0]

    def _frame(self, frame: bytes, size: int) -> bytes:
        """Return the ``size`` bytes of a frame; memory is allocated only for that size."""
        try:
            if self._parameters(frame).content_size != size:
                raise ValueError(f"zstd code: a frame is not of {size} bytes")
            return bytes(self._decompress(frame, max_output_size=size, allow_extra_data=False))
        except self._error as error:
            raise ValueError(f"zstd code: {error}") from None


def _planes(largest: int) -> int:
    """Return the bytes that hold an integer, at most 4."""
    return min(4, (largest.bit_length() + 7) // 8)
