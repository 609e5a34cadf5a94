"""Training, test and validation set of a dataset: images as stored, normalisation, sets held in memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.dataset import DataError, Dataset, Labelled, Split, content_digest
from hpcdl.data.parts.sharding import epoch_order
from hpcdl.fabric.comm import Array

_SMALL: Final = 1 << 13
"""Largest number of values of an image that is processed as one row."""
_BLOCK: Final = 1 << 22
"""Pixel values counted at a time; counting takes 8 bytes per value."""


@dataclass(frozen=True)
class PixelNormalization:
    """Maps x to (x / 255 - mean) / std; ``mean`` and ``std`` (C,) are those of x / 255."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    def __call__(self, pixels: Array, dtype: str) -> Array:
        """Return normalised images (n, H, W, C) of the floating ``dtype`` as a new array."""
        scale = (1 / (255 * self.std)).astype(dtype)
        shift = (self.mean / self.std).astype(dtype)
        images = pixels.astype(dtype, order="C")
        _, height, width, channels = images.shape
        rows = images
        if channels > 1 and images.size:
            # longer rows, because numpy's inner loop runs over the last axis
            repeats = width if height * width * channels > _SMALL else height * width
            scale, shift = np.tile(scale, repeats), np.tile(shift, repeats)
            rows = images.reshape(-1, len(scale))
        rows *= scale
        rows -= shift
        return images


class PixelCounts:
    """Histogram of the 256 pixel values per channel: its sums have equal bits in any order of the images."""

    def __init__(self, channels: int) -> None:
        self._counts = np.zeros((channels, 256), np.int64)

    def add(self, images: NDArray[np.uint8]) -> None:
        step = max(1, _BLOCK // max(1, images[:1].size))
        for begin in range(0, len(images), step):
            part = images[begin : begin + step]
            for channel in range(len(self._counts)):
                self._counts[channel] += np.bincount(part[..., channel].reshape(-1), minlength=256)

    def normalization(self) -> PixelNormalization:
        """Return the normalisation of the counted pixels, at least one; a deviation of 0 becomes 1."""
        values = np.arange(256) / 255
        weights = self._counts / self._counts.sum(axis=1, keepdims=True)
        mean = weights @ values
        variance = (weights * (values - mean[:, None]) ** 2).sum(axis=1)
        return PixelNormalization(mean, np.where(variance > 0, np.sqrt(variance), 1.0))


@dataclass(eq=False)
class ImageSplit:
    """Reads the pixels of a batch, augments them and converts them to normalised floats."""

    read: Callable[[NDArray[np.int64]], Array]
    labels: NDArray[np.int64]
    normalization: PixelNormalization
    augmentation: Augmentation

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None) -> Labelled:
        labels = self.labels[indices]  # an index out of range fails before anything is read
        pixels = self.read(indices)
        _, height, width, channels = pixels.shape
        draw = self.augmentation.draw
        crops = None if key is None else draw(indices, len(self), key, (height, width, channels))
        if crops is None:
            return self.normalization(self.augmentation.centre(pixels), dtype), labels
        images = self.normalization(crops.of(pixels), dtype)
        crops.blank(images)
        return images, labels


def in_memory_dataset(
    name: str,
    train: Labelled,
    test: Labelled,
    *,
    classes: int,
    source: str,
    augmentation: Augmentation | None = None,
) -> Dataset:
    """Return a dataset of images (n, H, W, C) and labels (n,) per split; the training split must not be empty.

    Images are bytes or other numbers. Mean and deviation are those of training. DataError: wrong ``augmentation``.
    """
    height, width, channels = train[0].shape[1:]
    chosen = augmentation or Augmentation()
    chosen.check(name, (height, width, channels))
    normalization = _normalization(train[0])
    return Dataset(
        name=name,
        train=ImageSplit(train[0].__getitem__, train[1], normalization, chosen),
        test=ImageSplit(test[0].__getitem__, test[1], normalization, chosen),
        shape=chosen.cut((height, width, channels)),
        classes=classes,
        source=source,
        digest=content_digest(*train, *test),
    )


def _normalization(images: Array) -> PixelNormalization:
    """Return the normalisation of images (n, H, W, C)."""
    if images.dtype == np.uint8:
        counts = PixelCounts(images.shape[3])
        counts.add(images)
        return counts.normalization()
    mean, std = images.mean((0, 1, 2), np.float64), images.std((0, 1, 2), np.float64)
    is_constant = std <= 1e-9 * np.abs(mean)  # up to the rounding of the mean
    return PixelNormalization(mean / 255, np.where(is_constant, 1.0, std) / 255)


def divided(where: object, images: int, name: str, share: object) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of training and test images, where a source states no split: ``share`` are test images.

    The draw is always the same. Raises DataError, beginning with ``where``, for a missing or wrong ``name``.
    """
    if share is None:
        raise DataError(f"{where}: states no test images; {name}=0.2 holds out a fifth of the images at random")
    held = round(share * images) if isinstance(share, float) and 0 < share < 1 else 0
    if not 0 < held < images:
        raise DataError(f"{where}: {name}={share} leaves no training or no test images, of {images}")
    order = epoch_order(images, 0, 0)
    return np.sort(order[held:]), np.sort(order[:held])


SEED: Final = 20
"""Seed of the choice, the same for all cases: seeds of a case share their validation set."""


class Part:
    """Images of a split at some indices."""

    def __init__(self, split: Split, indices: NDArray[np.int64]) -> None:
        self._split = split
        self._indices = indices
        self.labels = split.labels[indices]

    def __len__(self) -> int:
        return len(self._indices)

    def batch(self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None) -> Labelled:
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
    kept, held_out = (Part(dataset.train, np.sort(part)) for part in (order[held:], order[:held]))
    return replace(dataset, train=kept, validation=held_out)
