"""Cut vectors into segments, so that one of them is under way while another one is worked on.

A pipeline of d stages takes (d + k)*(alpha + n/k*beta) for k segments, the least where a segment has
sqrt(n*alpha/(d*beta)) bytes. alpha/beta, what a link carries in one latency, is 4 to 120 kB for the networks of
:mod:`hpcdl.fabric.network` but NVLink, so that the usual 64 KiB are right for vectors of d times 0.04 to 1 MB;
longer vectors or more latency want longer segments, as the root of either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.fabric.comm import partition

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

_LEAST: Final = 8
"""Bytes: one number of the largest kind that is summed."""


def segmented(buffer: Array, parts: int, segment_bytes: int) -> list[list[Array]]:
    """Cut a vector into ``parts`` equal parts, and each of these into equally many segments.

    There are as few segments as let none be longer than ``segment_bytes``, rounded up to a whole element, and at
    least one. Raises ValueError if ``segment_bytes`` is less than 8.
    """
    if segment_bytes < _LEAST:
        raise ValueError(f"segment_bytes = {segment_bytes}: a segment has at least {_LEAST} bytes")
    count = max(1, -(-buffer.nbytes // (parts * segment_bytes)))
    return [partition(part, count) for part in partition(buffer, parts)]
