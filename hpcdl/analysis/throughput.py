"""Throughput of a training whose ranks keep no common step, or whose steps are not alike.

An asynchronous worker has its own steps, a server has none, and averaging every k steps makes one of them longer:
the slowest rank of a step is not defined. So images are counted instead. The measured span is
from when every worker has passed its warm-up steps until the first worker has ended, all ranks that take steps
being workers. Images are counted as if each step consumed its own evenly. Time in which no worker is inside a step
is left out: ranks evaluate on the test set then. The span is cut into windows of equally many images, batch
means in the sense of Law (Simulation Modeling and Analysis, 9.5.3): their mean is the time per global batch, and
global batch / mean is images per second, all images of the span by its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from hpcdl.analysis.statistics import Vector
    from hpcdl.trace.run import Table

WINDOWS: Final = 20
"""At most; Schmeiser (Operations Research 30, 1982): 10 to 30 are enough. Each has at least a global batch."""


class Throughput(NamedTuple):
    """Throughput over a time span. Vectors per worker are in the order of the ranks."""

    begin: int
    """Of the span, ns on rank 0's clock."""
    end: int
    batches: float
    """Global batches consumed within it."""
    seconds: Vector
    """Per window: seconds per global batch."""
    compute: Vector
    """Per worker: seconds of local work while all together consume a global batch; so are the next three."""
    input: Vector
    messages: Vector
    bytes: Vector


def throughput_of(steps: Table, warmup: int, batch: float) -> Throughput | None:
    """Return the throughput of a case with global batches of ``batch`` images; None if nothing was measured.

    ``steps`` holds the columns of :attr:`hpcdl.trace.run.Run.steps`, rows in any order.
    """
    begin, end, images = steps["begin"], np.maximum(steps["end"], steps["begin"] + 1), steps["images"]
    ranks, worker = np.unique(steps["rank"], return_inverse=True)
    warm = [begin[(worker == one) & (steps["step"] >= warmup)] for one in range(len(ranks))]
    if not all(map(len, warm)):
        return None
    first = max(int(one.min()) for one in warm)
    last = min(int(end[worker == one].max()) for one in range(len(ranks)))
    inside = np.clip(np.minimum(end, last) - np.maximum(begin, first), 0, None) / (end - begin)
    batches = float((images * inside).sum()) / batch
    if batches < 1:
        return None
    windows = min(WINDOWS, int(batches))
    moments = np.unique(np.concatenate([begin, end, [first, last]]).clip(first, last))
    lengths = np.diff(moments)
    busy = _sums(np.where(_level(moments, begin, end, np.ones(len(begin))) > 0.5, lengths, 0.0)) / 1e9
    consumed = _sums(_level(moments, begin, end, images / (end - begin)) * lengths)
    edges = np.interp(np.linspace(0, consumed[-1], windows + 1), consumed, busy)

    def per_worker(column: str) -> Vector:
        return np.asarray(np.bincount(worker, steps[column] * inside, len(ranks)) / batches, np.float64)

    return Throughput(
        first,
        last,
        batches,
        seconds=np.diff(edges) * windows / batches,
        compute=per_worker("compute_ns") / 1e9,
        input=per_worker("input_ns") / 1e9,
        messages=per_worker("messages"),
        bytes=per_worker("bytes"),
    )


def _level(moments: Vector, begin: Vector, end: Vector, height: Vector) -> Vector:
    """Between each two of the ascending ``moments`` the sum of the heights of the steps that are under way."""
    last = len(moments) - 1
    change = np.zeros(len(moments))
    np.add.at(change, np.searchsorted(moments, begin).clip(0, last), height)
    np.add.at(change, np.searchsorted(moments, end).clip(0, last), -height)
    return np.asarray(np.cumsum(change)[:-1], np.float64)


def _sums(values: Vector) -> Vector:
    return np.concatenate([[0.0], np.cumsum(values)])
