"""Segments of vectors for pipelines: one is under way while another one is added.

A pipeline of d stages takes (d + k)*(alpha + n/k*beta) for k segments. The best segment has sqrt(n*alpha/(d*beta))
bytes. alpha/beta is 4 to 120 kB for the networks of :mod:`hpcdl.fabric.network` except NVLink. Therefore the
default of 64 KiB suits vectors of d times 0.04 to 1 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.fabric.vectors import partition

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

_LEAST: Final = 8
"""Bytes of the longest data type that is summed."""


def segmented(buffer: Array, parts: int, segment_bytes: int) -> list[list[Array]]:
    """Return ``parts`` equal parts of a vector, each as a list of segments; all lists are equally long.

    A segment has at most ``segment_bytes``, rounded up to a whole element; each part has at least one. Raises
    ValueError if ``segment_bytes`` is less than 8.
    """
    if segment_bytes < _LEAST:
        raise ValueError(f"segment_bytes = {segment_bytes}: a segment has at least {_LEAST} bytes")
    count = max(1, -(-buffer.nbytes // (parts * segment_bytes)))
    return [partition(part, count) for part in partition(buffer, parts)]
