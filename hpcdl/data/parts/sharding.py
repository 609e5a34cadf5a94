"""Assignment of images to ranks: one shuffle per epoch, and contiguous shares of every batch."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Relative sizes of the ranks' shares of a batch.

    The last of ``weights`` also applies to all further ranks: (3, 1) gives rank 0 three times as many images as
    any other. ValueError: weights that are not whole numbers of 1 or more.
    """

    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.weights or any(type(weight) is not int or weight < 1 for weight in self.weights):
            raise ValueError(f"weights: must be whole numbers of at least 1, not {list(self.weights)}")

    def __str__(self) -> str:
        return ":".join(map(str, self.weights))

    def among(self, ranks: int) -> tuple[int, ...]:
        return (*self.weights, *self.weights[-1:] * (ranks - len(self.weights)))[:ranks]


EPOCHS, REPLICAS = "epochs", "replicas"
"""Partitions: all images are shuffled in every epoch, or each replica has its own."""
EQUAL: Final = Shares(weights=(1,))
"""Equal shares; sizes differ by at most one image."""


@lru_cache(maxsize=4)  # shared by the ranks of one process
def epoch_order(images: int, epoch: int, seed: int) -> NDArray[np.int64]:
    """Return a permutation of 0 .. images - 1, (images,), that depends only on ``seed`` and ``epoch``.

    Every rank computes the same order (Goyal et al. 2017, section 3), from raw generator output, which numpy
    guarantees not to change (NEP 19). Results are cached and read-only. ValueError: a negative argument.
    """
    keys = np.random.PCG64([seed, epoch]).random_raw(images)
    order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


def own_images(
    images: int, epoch: int, seed: int, rank: int, ranks: int, shares: Shares = EQUAL
) -> NDArray[np.int64]:
    """Return the images of ``rank`` where each has its own in all epochs, in the order of ``epoch``.

    The images are shuffled once and divided by the shares (Dean et al. 2012, section 4.1).
    """
    begin, end = bounds(images, ranks, shares)[rank : rank + 2]
    return epoch_order(images, 0, seed)[begin:end][epoch_order(end - begin, epoch, seed)]


def steps_per_epoch(images: int, global_batch: int) -> int:
    """Return the number of whole batches in an epoch; other images are not used. Raises ValueError for none."""
    if global_batch < 1:
        raise ValueError(f"the global batch must be positive, but is {global_batch}")
    if global_batch > images:
        raise ValueError(f"the global batch {global_batch} is larger than the number of images, {images}")
    return images // global_batch


@lru_cache(maxsize=4)
def bounds(global_batch: int, ranks: int, shares: Shares = EQUAL) -> tuple[int, ...]:
    """Return the position in a batch where each rank's share begins, and the batch's end, (ranks + 1,).

    Sizes differ from the weights' proportions by less than an image; some may be 0.
    """
    before = [*accumulate(shares.among(ranks), initial=0)]
    return tuple(weight * global_batch // before[-1] for weight in before)


def share(
    order: NDArray[np.int64], step: int, global_batch: int, rank: int, ranks: int, shares: Shares = EQUAL
) -> NDArray[np.int64]:
    """Return the indices that ``rank`` of ``ranks`` uses at ``step``: its contiguous part of the batch.

        order   [ . . . . | step's global batch  | . . . . ]
                          [ rank 0 | rank 1 | .. ]

    The result, (share,), is a view of ``order``. Raises ValueError if ``step`` or ``rank`` is out of range.
    """
    if not 0 <= step < steps_per_epoch(len(order), global_batch):
        raise ValueError(f"there is no step {step} in {len(order)} images with a global batch of {global_batch}")
    if not 0 <= rank < ranks:
        raise ValueError(f"there is no rank {rank} among {ranks}")
    batch = order[step * global_batch : (step + 1) * global_batch]
    begin, end = bounds(global_batch, ranks, shares)[rank : rank + 2]
    return batch[begin:end]
