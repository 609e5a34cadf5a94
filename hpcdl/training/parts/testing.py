"""Test of a whole network on images of a split."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.data.parts.prefetch import Prefetch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hpcdl.data.parts.dataset import Split
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.replica import Replica


@contextmanager
def using(replica: Replica, parameters: Array | None) -> Iterator[None]:
    """Use ``parameters`` in place of the replica's own, which return afterwards; None: its own."""
    own = None if parameters is None else replica.parameters.copy()
    if parameters is not None:
        replica.parameters[:] = parameters
    yield
    if own is not None:
        replica.parameters[:] = own


def test(
    replica: Replica, split: Split, indices: NDArray[np.int64], most: int, prefetch: int
) -> NDArray[np.float64]:
    """Return the summed loss and the number of correct answers over the images at ``indices``, (2,).

    At most ``most`` images are tested at a time; ``prefetch`` batches are made ahead by a thread.
    """
    parts = range(0, len(indices), most)

    def make(part: int) -> tuple[Array, NDArray[np.int64]]:
        return split.batch(indices[parts[part] :][:most], replica.dtype)

    sums = np.zeros(2)
    with Prefetch(make, len(parts), prefetch) as ahead:
        for part in range(len(parts)):
            images, labels = ahead.take(part)
            logits = replica.predict(replica.backend.asarray(images))
            loss, correct, _ = replica.loss(logits, replica.backend.asarray(labels), 1.0)
            sums += (loss, correct)
    replica.release_predictions()
    return sums


def test_share(
    replica: Replica,
    split: Split,
    own: tuple[int, int],
    global_batch: int,
    prefetch: int,
    parameters: Array | None,
) -> NDArray[np.float64]:
    """Return :func:`test` of the share ``own`` (rank, ranks), with ``parameters`` or the replica's.

    Batches are no larger than in training, so that tests need no more memory than training.
    """
    rank, ranks = own
    mine = np.arange(rank * len(split) // ranks, (rank + 1) * len(split) // ranks)
    with using(replica, parameters):
        return test(replica, split, mine, math.ceil(global_batch / ranks), prefetch)
