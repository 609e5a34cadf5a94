"""Dataset of images in memory, stored as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.dataset import Dataset, content_digest
from hpcdl.data.parts.image_split import ImageSplit
from hpcdl.data.parts.normalization import PixelCounts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def in_memory_dataset(
    name: str,
    train: tuple[NDArray[np.uint8], NDArray[np.int64]],
    test: tuple[NDArray[np.uint8], NDArray[np.int64]],
    *,
    classes: int,
    source: str,
    augmentation: Augmentation | None = None,
) -> Dataset:
    """Return a dataset of images (n, H, W, C) and labels (n,) per split; the training split must not be empty.

    Mean and standard deviation are computed from the training split only. Raises DataError for an invalid
    ``augmentation``.
    """
    height, width, channels = train[0].shape[1:]
    chosen = augmentation or Augmentation()
    chosen.check(name, (height, width, channels))
    counts = PixelCounts(channels)
    counts.add(train[0])
    normalization = counts.normalization()
    return Dataset(
        name=name,
        train=ImageSplit(train[0].__getitem__, train[1], normalization, chosen),
        test=ImageSplit(test[0].__getitem__, test[1], normalization, chosen),
        shape=chosen.cut((height, width, channels)),
        classes=classes,
        source=source,
        digest=content_digest(*train, *test),
    )
