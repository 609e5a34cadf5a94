"""Division of a kernel's loop into one part per thread.

Parallel kernels run their parts in numba's own pool: OpenMP's threads begin after 4 us, a Python thread after 80.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numba
import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.threads import limit

Kernel: TypeAlias = Callable[..., Any]
"""A compiled function of arrays and numbers."""

MIN_OPERATIONS: Final = 1 << 15
"""Multiplications or additions of a part, at least; they take about as long as the start of a thread."""


def bounds(count: int, operations: int) -> Array:
    """Return where parts of range(count) begin and end: int64, one more than parts.

    ``operations`` of the whole loop limit the number of parts. The number depends on nothing else but the number
    of threads that are allowed, so that sums over parts are the same in every run.
    """
    parts = max(min(limit(), count, operations // MIN_OPERATIONS), 1)
    if parts > 1:
        numba.set_num_threads(min(parts, numba.config.NUMBA_NUM_THREADS))
    return np.arange(parts + 1) * count // parts


def kernel(parts: Array, alone: Kernel, divided: Kernel) -> Kernel:
    """Return ``alone`` for one part, else ``divided`` with its first argument, the parts.

    A kernel without parallel regions is called a few microseconds faster.
    """
    return alone if len(parts) <= 2 else partial(divided, parts)
