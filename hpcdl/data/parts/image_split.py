"""Split of images that are stored as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from hpcdl.data.parts.augmentation import Augmentation
    from hpcdl.data.parts.normalization import PixelNormalization
    from hpcdl.fabric.comm import Array


class ImageSplit:
    """Reads the bytes of a batch, augments them and converts them to normalised floats."""

    def __init__(
        self,
        read: Callable[[NDArray[np.int64]], NDArray[np.uint8]],
        labels: NDArray[np.int64],
        normalization: PixelNormalization,
        augmentation: Augmentation,
    ) -> None:
        """Use ``read``, which returns the images (n, H, W, C) at indices (n,), and ``labels`` (images,)."""
        self.labels = labels
        self._read = read
        self._normalization = normalization
        self._augmentation = augmentation

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def batch(
        self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """See :meth:`hpcdl.data.parts.dataset.Split.batch`."""
        labels = self.labels[indices]  # an index out of range fails before anything is read
        pixels = self._read(indices)
        _, height, width, channels = pixels.shape
        crops = None
        if key is not None:
            crops = self._augmentation.draw(indices, len(self), key, (height, width, channels))
        if crops is None:
            return self._normalization(self._augmentation.centre(pixels), dtype), labels
        images = self._normalization(crops.of(pixels), dtype)
        crops.blank(images)
        return images, labels
