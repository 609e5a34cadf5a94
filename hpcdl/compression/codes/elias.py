"""Elias's codes of integers of unknown range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.code import check_room, most_bits, padded

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes
    from hpcdl.fabric.comm import Array

FORMS: Final = ("gamma", "delta", "omega")


class Elias:
    """Universal code of x = integer + 1 (Elias 1975): no parameter, short for small integers.

    ``form`` is one of these, with N = floor(log2 x):

    - ``gamma``: N zeros, then x in N + 1 bits.
    - ``delta``: N + 1 as gamma, then the N lower bits of x. The shortest of the three for gaps.
    - ``omega``: the recursive code. QSGD codes gaps and levels with it (Alistarh 2017, section 3.2).
    """

    words = False

    def __init__(self, *, form: str = "delta") -> None:
        """Raise ValueError for an unknown ``form``."""
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        from hpcdl.compression.kernels import integer_codes  # late: listing compressors must not load numba

        self._kernels = integer_codes
        self._form = FORMS.index(form)
        self._steps = [((1 << n) - 1, _bits(n, form)) for n in range(33)]

    def bound(self, count: int, total: int) -> int:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        return (most_bits(self._steps, count, total) + 7) // 8

    def encode(self, integers: Array, wire: Bytes) -> int:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        check_room(wire, self.bound(len(integers), int(integers.sum(dtype=np.uint64))))
        return int(self._kernels.encode_elias(integers, wire, self._form))

    def decode(self, message: Bytes, integers: Array) -> None:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        decode = self._kernels.decode_omega if FORMS[self._form] == "omega" else self._kernels.decode_prefixed
        if not decode(padded(message), len(message), self._form, integers):
            raise ValueError(f"Elias code: {len(message)} bytes are not {len(integers)} integers")


def _bits(n: int, form: str) -> int:
    """Return the bits of an x with floor(log2 x) = ``n``."""
    if form == "gamma":
        return 2 * n + 1
    if form == "delta":
        return n + 2 * (n + 1).bit_length() - 1
    bits = 1
    while n > 0:
        bits += n + 1
        n = n.bit_length() - 1
    return bits
