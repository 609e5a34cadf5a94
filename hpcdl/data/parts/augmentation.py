"""Augmentation: random crops and reflections of training images, new in each epoch."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from zlib import crc32

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import DataError, is_whole
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
