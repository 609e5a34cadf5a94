"""Who trains on which image: one shuffle per epoch, and contiguous shares of every batch."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


def share(order: NDArray[np.int64], step: int, global_batch: int, rank: int, ranks: int) -> NDArray[np.int64]:
    """The indices that ``rank`` of ``ranks`` trains on at ``step``: its contiguous part of the batch.

        order   [ . . . . | step's global batch  | . . . . ]
                          [ rank 0 | rank 1 | .. ]

    The shares of all ranks, one after another, are the batch. They differ by one image at most; where the
    batch has fewer images than there are ranks, some are empty. The result, (share,), is a view of
    ``order``.

    Raises ValueError if ``step`` is not in 0 .. steps_per_epoch - 1 or ``rank`` not in 0 .. ranks - 1.
    """
    if not 0 <= step < steps_per_epoch(len(order), global_batch):
        raise ValueError(f"there is no step {step} in {len(order)} images with a global batch of {global_batch}")
    if not 0 <= rank < ranks:
        raise ValueError(f"there is no rank {rank} among {ranks}")
    batch = order[step * global_batch : (step + 1) * global_batch]
    return batch[rank * global_batch // ranks : (rank + 1) * global_batch // ranks]
