"""Validation set: training images that are held out, so that nothing is chosen by the test set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcdl.data.parts.dataset import Dataset, Split
    from hpcdl.fabric.comm import Array

SEED: Final = 20
"""Seed of the choice, the same for all cases: seeds of a case share their validation set."""


class Part:
    """Images of a split at some indices."""

    def __init__(self, split: Split, indices: NDArray[np.int64]) -> None:
        self._split = split
        self._indices = indices
        self.labels = split.labels[indices]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._indices)

    def batch(
        self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """See :meth:`hpcdl.data.parts.dataset.Split.batch`."""
        return self._split.batch(self._indices[indices], dtype, key)


def with_validation(dataset: Dataset, share: float) -> Dataset:
    """Return the dataset with ``share`` of its training images, at least one, held out at random.

    Images are normalised by all training images. Raises ValueError if no training image would be left.
    """
    images = len(dataset.train)
    held = max(1, round(share * images))
    if held >= images:
        raise ValueError(f"{held} of {images} training images are held out; none is left")
    order = np.random.default_rng(SEED).permutation(images)
    own, out = (Part(dataset.train, np.sort(part)) for part in (order[held:], order[:held]))
    return replace(dataset, train=own, validation=out)
