"""Dataset: two splits of labelled images, with their source and digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array


class DataError(Exception):
    """A dataset is missing or damaged, or its settings are invalid; one line."""


class Split(Protocol):
    """Training or test split of a dataset."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class of every image, (images,), from 0 to classes - 1."""
        ...

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def batch(
        self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """Return the images and labels at ``indices`` (n,), in that order, as new arrays; n may be 0.

        Images are (n, H, W, C), C-contiguous, of the floating ``dtype``, normalised to mean 0 and standard
        deviation 1 per channel over the training split; labels are (n,). Thread-safe.

        ``key``, non-negative numbers such as seed and epoch, requests training images: if the dataset has
        augmentation, each image's change depends only on the key and its index. Without ``key`` images are not
        augmented.

        Raises IndexError for an index out of range, OSError for an image that can no longer be read.
        """
        ...


@dataclass(frozen=True)
class Dataset:
    """Training and test split with their description; also a validation split, where a case holds one out."""

    name: str
    train: Split
    test: Split
    shape: tuple[int, int, int]
    """Height, width, channels of one image."""
    classes: int
    source: str
    """Origin of the images: files, or a citation."""
    digest: str
    """SHA-256, hexadecimal, of the content; equal digests mean equal images and labels in equal order."""
    validation: Split | None = None
    """Images that training does not see and that choices may depend on."""

    @property
    def watched(self) -> Split:
        """Split of the evaluations during training: the validation split, or the test split if there is none."""
        return self.validation or self.test


class ContentDigest:
    """Incremental SHA-256 over dtype, shape and values of arrays."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def begin(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Begin an array of this dtype and shape."""
        self._digest.update(f"{dtype.newbyteorder('<').str}{shape}".encode())

    def add(self, part: Array) -> None:
        """Add the next values of the current array, in C order."""
        self._digest.update(np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<")).data)

    def hexadecimal(self) -> str:
        """Return the digest of everything added so far."""
        return self._digest.hexdigest()


def content_digest(*arrays: Array) -> str:
    """Return the :class:`ContentDigest`, hexadecimal, of whole arrays."""
    digest = ContentDigest()
    for array in arrays:
        digest.begin(array.dtype, array.shape)
        digest.add(array)
    return digest.hexadecimal()
