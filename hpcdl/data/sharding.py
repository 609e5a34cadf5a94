"""Who trains on which image: one shuffle per epoch, and contiguous shares of every batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How large the ranks' shares of a batch are, by each other.

    ``weights`` are those of the first ranks, and the last of them that of all others as well: (3, 1) says on any
    number of ranks that the first one has three times as many images as each other. ValueError: not whole numbers
    of 1 or more.
    """

    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.weights or any(type(weight) is not int or weight < 1 for weight in self.weights):
            raise ValueError(f"weights: must be whole numbers of at least 1, not {list(self.weights)}")

    def __str__(self) -> str:
        return ":".join(map(str, self.weights))

    def among(self, ranks: int) -> tuple[int, ...]:
        """The weight of each of ``ranks`` ranks."""
        return (*self.weights, *self.weights[-1:] * (ranks - len(self.weights)))[:ranks]


EQUAL: Final = Shares(weights=(1,))
"""All alike, but for one image."""


@lru_cache(maxsize=4)  # ranks in one process share it
def epoch_order(images: int, epoch: int, seed: int) -> NDArray[np.int64]:
    """A permutation of 0 .. images - 1, (images,), that depends on ``seed`` and ``epoch`` alone.

    Every rank computes it alone, and the number of ranks is not in it, so a training on p ranks sees the
    images in the order in which one rank would. It is made from raw generator output, which numpy keeps for
    ever; the order of ``Generator.permutation`` it does not (NEP 19). Source: Goyal et al. 2017, section 3.
    The last few are kept, and may not be written to.

    Raises ValueError if ``images``, ``epoch`` or ``seed`` is negative.
    """
    keys = np.random.PCG64([seed, epoch]).random_raw(images)
    order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


def steps_per_epoch(images: int, global_batch: int) -> int:
    """Number of whole batches in an epoch.

    The last images % global_batch of an epoch's order are not trained on: a smaller batch would want
    another learning rate and would leave ranks idle; the next epoch's order brings them back.

    Raises ValueError if ``global_batch`` is not positive or there is not one whole batch.
    """
    if global_batch < 1:
        raise ValueError(f"the global batch must be positive, but is {global_batch}")
    if global_batch > images:
        raise ValueError(f"a global batch of {global_batch} is more than the {images} images there are")
    return images // global_batch


@lru_cache(maxsize=4)
def bounds(global_batch: int, ranks: int, shares: Shares = EQUAL) -> tuple[int, ...]:
    """Where in a batch each rank's share begins, (ranks + 1,): each ends where the next one begins.

    Shares are as their weights say, but for less than an image; where weights are equal and the batch has fewer
    images than there are ranks, some are empty.
    """
    before = [*accumulate(shares.among(ranks), initial=0)]
    return tuple(weight * global_batch // before[-1] for weight in before)


def share(
    order: NDArray[np.int64], step: int, global_batch: int, rank: int, ranks: int, shares: Shares = EQUAL
) -> NDArray[np.int64]:
    """The indices that ``rank`` of ``ranks`` trains on at ``step``: its contiguous part of the batch.

        order   [ . . . . | step's global batch  | . . . . ]
                          [ rank 0 | rank 1 | .. ]

    The shares of all ranks, one after another, are the batch, cut at its :func:`bounds`. The result, (share,), is
    a view of ``order``.

    Raises ValueError if ``step`` is not in 0 .. steps_per_epoch - 1 or ``rank`` not in 0 .. ranks - 1.
    """
    if not 0 <= step < steps_per_epoch(len(order), global_batch):
        raise ValueError(f"there is no step {step} in {len(order)} images with a global batch of {global_batch}")
    if not 0 <= rank < ranks:
        raise ValueError(f"there is no rank {rank} among {ranks}")
    batch = order[step * global_batch : (step + 1) * global_batch]
    begin, end = bounds(global_batch, ranks, shares)[rank : rank + 2]
    return batch[begin:end]
