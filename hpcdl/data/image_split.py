"""A split of images that are bytes, wherever they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from hpcdl.data.augmentation import Augmentation
    from hpcdl.data.normalization import Normalization
    from hpcdl.fabric.comm import Array


class ImageSplit:
    """Takes the bytes of the batch asked for, cuts and mirrors them, and makes floats of what is left."""

    def __init__(
        self,
        read: Callable[[NDArray[np.int64]], NDArray[np.uint8]],
        labels: NDArray[np.int64],
        normalization: Normalization,
        augmentation: Augmentation,
    ) -> None:
        """``read`` gives the images (n, H, W, C) at indices (n,); there are as many as ``labels`` (images,)."""
        self.labels = labels
        self._read = read
        self._normalization = normalization
        self._augmentation = augmentation

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def batch(
        self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """See :meth:`hpcdl.data.dataset.Split.batch`."""
        labels = self.labels[indices]  # complains of an index too high before anything is read
        pixels = self._read(indices)
        _, height, width, channels = pixels.shape
        views = None
        if key is not None:
            views = self._augmentation.draw(indices, len(self), key, (height, width, channels))
        if views is None:
            return self._normalization(self._augmentation.centre(pixels), dtype), labels
        images = self._normalization(views.of(pixels), dtype)
        views.blank(images)
        return images, labels
