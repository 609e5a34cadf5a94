"""Pad small images to a larger square."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.data.parts.dataset import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pad_to_square(name: str, images: NDArray[np.uint8], side: int | None) -> NDArray[np.uint8]:
    """Return ``images`` (n, H, W, C) centred in black squares, (n, side, side, C); unchanged if ``side`` is None.

    LeNet-5, for example, pads MNIST's 28 x 28 to 32 x 32 (LeCun et al. 1998, section II.B). An odd row or column
    is added at the bottom or right. Raises DataError, beginning with ``name``, for an invalid side.
    """
    if side is None:
        return images
    count, height, width, channels = images.shape
    if not isinstance(side, int) or isinstance(side, bool) or side < max(height, width):
        raise DataError(
            f"{name}: pad_to must be a whole number of at least {max(height, width)}, for images of "
            f"{height} x {width}, not {side!r}"
        )
    top, left = (side - height) // 2, (side - width) // 2
    padded = np.zeros((count, side, side, channels), np.uint8)
    padded[:, top : top + height, left : left + width] = images
    return padded
