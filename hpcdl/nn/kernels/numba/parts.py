"""Division of a kernel's loop into one part per thread.

Parallel kernels run their parts in numba's own pool: OpenMP's threads begin after 4 us, a Python thread after 80.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numba
import numpy as np

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import limit
from hpcdl.nn.geometry import Pair

Kernel: TypeAlias = Callable[..., Any]
"""A compiled function of arrays and numbers."""
MIN_OPERATIONS: Final = 1 << 15
"""Multiplications or additions of a part, at least; they take about as long as the start of a thread."""
PRODUCTS: Final = 16
"""Multiply-additions of a register tile that take as long as one operation on memory."""
MIN_CHANNELS: Final = 16
"""Channels of a block, at least: a cache line."""


def number(count: int, operations: int) -> int:
    """Return the number of parts of a loop over range(count), one for each thread.

    It depends on nothing else but the number of threads, so that sums over parts are the same in every run.
    """
    parts = max(min(limit(), count, operations // MIN_OPERATIONS), 1)
    if parts > 1:
        numba.set_num_threads(min(parts, numba.config.NUMBA_NUM_THREADS))
    return parts


def bounds(count: int, operations: int) -> Array:
    """Return where the parts of range(count) begin and end: int64, one more than parts."""
    parts = number(count, operations)
    return np.arange(parts + 1) * count // parts


def grid(parts: int, lines: int, panels: int, weights: int, pixels: int, products: int) -> Pair:
    """Return how many of ``parts`` divide the lines of all images, and how many the panels of filters of each.

    Each part of the lines has its own gradient of the ``weights``, and each part of the panels its own copy of the
    ``pixels``, both in elements. ``products`` are those of the layer. The largest part and the copies cost least.
    """

    def cost(pair: Pair) -> float:
        down, across = pair
        largest = -(-lines // down) / max(lines, 1) * -(-panels // across) / panels
        return products / PRODUCTS * largest + weights * down + pixels / down

    return min(((parts // across, across) for across in range(1, parts + 1) if parts % across == 0), key=cost)


@njit(nogil=True, cache=True)
def share(count: int, part: int, parts: int) -> Pair:
    """Return begin and end of a part of range(count)."""
    return count * part // parts, count * (part + 1) // parts


def channel_blocks(images: int, channels: int) -> int:
    """Return the number of blocks of channels per image that gives all threads equally many blocks."""
    count = limit()
    return 1 if images % count == 0 or channels < count * MIN_CHANNELS else count


def kernel(parts: Array, alone: Kernel, divided: Kernel) -> Kernel:
    """Return ``alone`` for one part, else ``divided`` with its first argument, the parts.

    A kernel without parallel regions is called a few microseconds faster.
    """
    return alone if len(parts) <= 2 else partial(divided, parts)
