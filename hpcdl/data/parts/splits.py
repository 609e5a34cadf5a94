"""Training, test and validation set: images as stored, augmentation, normalisation, sets held in memory.

Augmentation is random crops and reflections of training images, new in each epoch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from zlib import crc32

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import DataError, Dataset, Labelled, Split, content_digest, is_whole
from hpcdl.data.parts.sharding import epoch_order
from hpcdl.fabric.comm import Array

_STREAM: Final = crc32(b"augmentation")
"""Separates these random numbers from those of the epoch's order, which have the same seed."""
_BITS: Final = 21
"""Bits of each of three random numbers drawn from 64 bits; probabilities of offsets err by at most 2^-21."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images.

    - ``crop_padding``: pad each side by so many pixels of the mean and crop to the original size
      (He et al. 2015, arXiv 1512.03385, section 4.2: 4 for CIFAR-10).
    - ``crop``: crop a square of that side from a larger image, for test images from the centre (Krizhevsky et al.
      2012, section 4.1: 224 of 256).
    - ``flip``: mirror left and right with probability 1/2 (both papers).
    """

    crop: int | None = None
    crop_padding: int = 0
    flip: bool = False

    def check(self, name: str, shape: tuple[int, int, int]) -> None:
        """Raise DataError, naming ``name``, if the settings are invalid for images of ``shape`` (H, W, C)."""
        height, width, _ = shape
        side = min(height, width)
        if not is_whole(self.crop_padding, 0) or self.crop_padding >= side:
            raise DataError(
                f"{name}: crop_padding must be a whole number from 0 to {side - 1}, for images of "
                f"{height} x {width}, not {self.crop_padding!r}"
            )
        if self.crop is not None and not is_whole(self.crop, 1):
            raise DataError(f"{name}: crop must be a whole number of at least 1, not {self.crop!r}")
        if self.crop is not None and self.crop > side:
            raise DataError(f"{name}: crop = {self.crop} is larger than the images, {height} x {width}")

    def cut(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape of a cropped image of ``shape`` (H, W, C)."""
        return shape if self.crop is None else (self.crop, self.crop, shape[2])

    def centre(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the central crop of ``pixels`` (n, H, W, C), used for tests; a view."""
        if self.crop is None:
            return pixels
        top, left = ((length - self.crop) // 2 for length in pixels.shape[1:3])
        return pixels[:, top : top + self.crop, left : left + self.crop]

    def draw(
        self, indices: NDArray[np.int64], images: int, key: tuple[int, ...], shape: tuple[int, int, int]
    ) -> "Crops | None":
        """Return random crops for the images at ``indices`` (n,) of ``images`` of ``shape``; None for no change.

        They depend only on ``key`` and each image's index, not on ranks or other images.
        """
        window = self.cut(shape)
        slack = [2 * self.crop_padding + shape[axis] - window[axis] for axis in (0, 1)]
        if not self.flip and not any(slack):
            return None
        random = _random(images, key)[indices]
        mask = np.uint64((1 << _BITS) - 1)
        top, left = (
            ((random >> np.uint64(shift) & mask) * np.uint64(extra + 1) >> np.uint64(_BITS)).astype(np.int64)
            for shift, extra in zip((2 * _BITS, _BITS), slack, strict=True)
        )
        mirrored = (random & np.uint64(1)).astype(bool) if self.flip else np.zeros(len(indices), bool)
        return Crops(top, left, mirrored, self.crop_padding, shape, window)


@dataclass(frozen=True)
class Crops:
    """One crop per image: ``top`` and ``left`` (n,) in the padded image, ``mirrored`` (n,) after cropping."""

    top: NDArray[np.int64]
    left: NDArray[np.int64]
    mirrored: NDArray[np.bool_]
    padding: int
    shape: tuple[int, int, int]
    """Height, width, channels of an image without padding."""
    window: tuple[int, int, int]
    """Height, width, channels of a crop."""

    def of(self, pixels: Array) -> Array:
        """Return the crops of ``pixels`` (n, *shape): (n, *window). Padding is 0 until :meth:`blank`."""
        height, width, channels = self.window
        pad = self.padding
        if pad:
            pixels = np.pad(pixels, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        # a view of all possible windows; the chosen one of each image is copied
        windows = np.moveaxis(sliding_window_view(pixels, (height, width), axis=(1, 2)), 3, 5)
        crops: Array = windows[np.arange(len(pixels)), self.top, self.left]
        if self.mirrored.any():
            backwards = crops[self.mirrored][:, :, ::-1]
            forwards = np.empty(backwards.shape, pixels.dtype)
            for channel in range(channels):  # four times as fast as copying pixels of three bytes
                forwards[..., channel] = backwards[..., channel]
            crops[self.mirrored] = forwards
        return crops

    def blank(self, images: Array) -> None:
        """Set the padding of normalised ``images`` (n, *window) to 0, which is their mean."""
        if self.padding:
            rows = _outside(self.top, self.padding, self.shape[0], self.window[0])
            columns = _outside(self.left, self.padding, self.shape[1], self.window[1])
            columns[self.mirrored] = columns[self.mirrored, ::-1]
            images[rows] = 0
            images.swapaxes(1, 2)[columns] = 0


def _outside(begin: NDArray[np.int64], padding: int, length: int, window: int) -> NDArray[np.bool_]:
    """Return which of ``window`` positions from ``begin`` (n,) on are padding: (n, window)."""
    position = begin[:, np.newaxis] + np.arange(window) - padding
    return (position < 0) | (position >= length)


@lru_cache(maxsize=2)  # ranks of one process may be in different epochs
def _random(images: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return 64 random bits per image: raw generator output, which numpy guarantees not to change (NEP 19)."""
    random = np.random.PCG64([_STREAM, *key]).random_raw(images)
    random.flags.writeable = False
    return random


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
    if train[0].dtype == np.uint8:
        counts = PixelCounts(channels)
        counts.add(train[0])
        normalization = counts.normalization()
    else:
        mean, std = train[0].mean((0, 1, 2), np.float64), train[0].std((0, 1, 2), np.float64)
        is_constant = std <= 1e-9 * np.abs(mean)  # up to the rounding of the mean
        normalization = PixelNormalization(mean / 255, np.where(is_constant, 1.0, std) / 255)
    return Dataset(
        name=name,
        train=ImageSplit(train[0].__getitem__, train[1], normalization, chosen),
        test=ImageSplit(test[0].__getitem__, test[1], normalization, chosen),
        shape=chosen.cut((height, width, channels)),
        classes=classes,
        source=source,
        digest=content_digest(*train, *test),
    )


def divided(where: object, images: int, share: object) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of training and test images, where a source states no split: ``share`` are test images.

    The draw is always the same. Raises DataError, beginning with ``where``, for a missing or wrong ``share``.
    """
    if share is None:
        raise DataError(
            f"{where}: states no test images; test_share=0.2 holds out a fifth of the images at random"
        )
    held = round(share * images) if isinstance(share, float) and 0 < share < 1 else 0
    if not 0 < held < images:
        raise DataError(f"{where}: test_share={share} leaves no training or no test images, of {images}")
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
