"""Synthetic images of any shape, computed when needed: for timing, and for learning with a visible effect."""

import json
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import DataError, Dataset, Labelled, content_digest, is_whole

MAX_IMAGES: Final = 1 << 26
"""Images of a split, at most: labels are in memory."""
_GRID: Final = 8
"""Side of a class pattern, for any image size; patterns of a thousand classes take a megabyte."""
_PLACES: Final = 1 << 16
"""Number of different offsets into the reservoir of noise."""
_STRIDE: Final = 40503
"""Odd number near 2^16 / golden ratio: neighbouring images get distant offsets, 2^16 images distinct ones."""


class SyntheticSplit:
    """Images computed from their index: a pattern of their class plus noise.

    Noise is a window of one reservoir of normal numbers, at an offset given by the index: new numbers for each
    image would take longer than a step of a small network.
    """

    def __init__(
        self,
        images: int,
        patterns: NDArray[np.float32],
        shape: tuple[int, int, int],
        noise: float,
        seed: list[int],
    ) -> None:
        self.labels = np.arange(images, dtype=np.int64) % len(patterns)
        self._shape = shape
        self._patterns = patterns / np.float32(np.hypot(1, noise))
        self._rows = np.arange(shape[0]) * patterns.shape[1] // shape[0]
        self._columns = np.arange(shape[1]) * patterns.shape[2] // shape[1]
        size = _PLACES - 1 + int(np.prod(shape))
        self._reservoir = np.random.default_rng(seed).standard_normal(size, np.float32)
        self._reservoir *= np.float32(noise / np.hypot(1, noise))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None) -> Labelled:
        """See :meth:`hpcdl.data.parts.dataset.Split.batch`. Values are computed in float32 for every ``dtype``."""
        del key  # no augmentation
        labels = self.labels[indices]
        size = int(np.prod(self._shape))
        images = np.empty((len(labels), *self._shape), dtype)
        offsets = indices * _STRIDE % _PLACES
        for image, label, offset in zip(images, labels, offsets, strict=True):
            pattern = self._patterns[label][self._rows][:, self._columns]
            np.add(pattern, self._reservoir[offset : offset + size].reshape(self._shape), out=image)
        return images, labels


def synthetic(
    *,
    shape: list[int] | tuple[int, ...] = (28, 28, 1),
    classes: int = 10,
    images: int = 1024,
    test_images: int = 256,
    noise: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """``images`` training images and ``test_images`` test images of ``shape`` (H, W, C) in ``classes`` classes.

    Image i has class i mod classes. Patterns and noise are normal; ``noise`` is the ratio of their standard
    deviations. Pixel values have mean 0 and deviation 1 in expectation. Both splits have the same patterns but
    different noise, which repeats after 65536 images. Raises DataError for invalid settings.
    """
    if not isinstance(shape, list | tuple) or len(shape) != 3 or not all(is_whole(length, 1) for length in shape):
        raise DataError(
            f"synthetic: shape must be three positive numbers [height, width, channels], not {shape!r}"
        )
    for key, count, least in (("classes", classes, 1), ("images", images, 1), ("test_images", test_images, 0)):
        if not is_whole(count, least) or count > MAX_IMAGES:
            raise DataError(f"synthetic: {key} must be a whole number from {least} to {MAX_IMAGES}, not {count!r}")
    if not is_whole(seed, 0):
        raise DataError(f"synthetic: seed must be a whole number of at least 0, not {seed!r}")
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < np.inf:
        raise DataError(f"synthetic: noise must be a number of at least 0, not {noise!r}")
    height, width, channels = shape
    patterns = np.random.default_rng([seed, 0]).standard_normal(
        (classes, min(height, _GRID), min(width, _GRID), channels), np.float32
    )
    train = SyntheticSplit(images, patterns, (height, width, channels), noise, [seed, 1])
    test = SyntheticSplit(test_images, patterns, (height, width, channels), noise, [seed, 2])
    settings = json.dumps([[*shape], classes, images, test_images, float(noise), seed]).encode()
    few = ((split, np.arange(min(len(split), 16))) for split in (train, test))
    samples = (array for split, indices in few for array in split.batch(indices, "float32"))
    return Dataset(
        name="synthetic",
        train=train,
        test=test,
        shape=(height, width, channels),
        classes=classes,
        source=f"synthetic, seed {seed}, noise {noise}",
        digest=content_digest(np.frombuffer(settings, np.uint8), patterns, *samples),
    )
