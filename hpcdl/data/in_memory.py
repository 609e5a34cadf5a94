"""Images held in memory as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.data.dataset import Dataset, content_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array


class InMemorySplit:
    """A split that keeps bytes and makes floats of the batch asked for: (x / 255 - mean) / std."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        mean: NDArray[np.float64],
        std: NDArray[np.float64],
    ) -> None:
        """Keep ``images`` (n, H, W, C) and ``labels`` (n,); ``mean`` and ``std`` (C,) are of x / 255."""
        self._images = images
        self.labels = labels
        self._mean = mean
        self._std = std

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def batch(self, indices: NDArray[np.int64], dtype: str) -> tuple[Array, NDArray[np.int64]]:
        """See :meth:`hpcdl.data.dataset.Split.batch`."""
        images = self._images[indices].astype(dtype)
        images *= (1 / (255 * self._std)).astype(dtype)
        images -= (self._mean / self._std).astype(dtype)
        return images, self.labels[indices]


def in_memory_dataset(
    name: str,
    train: tuple[NDArray[np.uint8], NDArray[np.int64]],
    test: tuple[NDArray[np.uint8], NDArray[np.int64]],
    *,
    classes: int,
    source: str,
) -> Dataset:
    """A dataset of images (n, H, W, C) and labels (n,) per split; the training split must not be empty.

    Mean and standard deviation are those of the training split: the held-out images must not leak into them.
    """
    mean, std = _statistics(train[0])
    height, width, channels = train[0].shape[1:]
    return Dataset(
        name=name,
        train=InMemorySplit(*train, mean, std),
        test=InMemorySplit(*test, mean, std),
        shape=(height, width, channels),
        classes=classes,
        source=source,
        digest=content_digest(*train, *test),
    )


def _statistics(images: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of x / 255 per channel, each (C,); a deviation of 0 becomes 1.

    From counts of the 256 values, which are exact: every rank must get the same numbers to the last bit.
    """
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), np.int64)
    for begin in range(0, len(images), 1024):  # bincount makes 8 bytes of each, too many for all images at once
        part = images[begin : begin + 1024]
        for channel in range(channels):
            counts[channel] += np.bincount(part[..., channel].reshape(-1), minlength=256)
    values = np.arange(256) / 255
    weights = counts / counts.sum(axis=1, keepdims=True)
    mean = weights @ values
    variance = (weights * (values - mean[:, None]) ** 2).sum(axis=1)
    return mean, np.where(variance > 0, np.sqrt(variance), 1.0)
