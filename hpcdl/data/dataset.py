"""What a dataset is: two splits of labelled images, and where they came from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array


class DataError(Exception):
    """A dataset is missing, damaged or asked for with impossible settings; the text is one line."""


class Split(Protocol):
    """One half of a dataset: what is trained on, or what is held out."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of every image, (images,), each in 0 .. classes - 1."""
        ...

    def __len__(self) -> int:
        """Number of images."""
        ...

    def batch(
        self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """The images and labels at ``indices`` (n,), in that order; n may be 0.

        Images are (n, H, W, C), C-contiguous, of the floating ``dtype``, normalised to mean 0 and standard
        deviation 1 per channel over the training split; labels are (n,). Both are the caller's own. May be
        called from any thread.

        ``key``, non-negative numbers such as seed and epoch, makes the images those of a training: each is
        augmented, if the dataset does that, by what is drawn from the key and the image's index alone. Without
        it they are those of a test, the same each time.

        Raises IndexError for an index that is not less than the number of images, OSError for an image that
        can no longer be read.
        """
        ...


@dataclass(frozen=True)
class Dataset:
    """A training split, a held-out split, and what the record of a run says about them."""

    name: str
    train: Split
    test: Split
    shape: tuple[int, int, int]
    """Height, width, channels of one image."""
    classes: int
    source: str
    """Where the images came from: files, or a citation."""
    digest: str
    """SHA-256, hexadecimal, of the content: equal digests mean equal images and labels in equal order."""


class ContentDigest:
    """SHA-256 over dtype, shape and values of arrays, whatever file they came from, a part at a time."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def begin(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """An array of this kind follows."""
        self._digest.update(f"{dtype.newbyteorder('<').str}{shape}".encode())

    def add(self, part: Array) -> None:
        """The next values of the array that was begun last, in C order."""
        self._digest.update(np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<")).data)

    def hexadecimal(self) -> str:
        """Of everything so far."""
        return self._digest.hexdigest()


def content_digest(*arrays: Array) -> str:
    """The :class:`ContentDigest`, hexadecimal, of whole arrays."""
    digest = ContentDigest()
    for array in arrays:
        digest.begin(array.dtype, array.shape)
        digest.add(array)
    return digest.hexadecimal()
