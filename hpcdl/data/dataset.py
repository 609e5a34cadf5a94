"""What a dataset is: two splits of labelled images, and where they came from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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

    def batch(self, indices: NDArray[np.int64], dtype: str) -> tuple[Array, NDArray[np.int64]]:
        """The images and labels at ``indices`` (n,), in that order; n may be 0.

        Images are (n, H, W, C), C-contiguous, of the floating ``dtype``, normalised to mean 0 and standard
        deviation 1 per channel over the training split; labels are (n,). Both are the caller's own. Raises
        IndexError for an index that is not less than the number of images.
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


def content_digest(*arrays: Array) -> str:
    """SHA-256 (hexadecimal) over dtype, shape and values of each array, whatever file they came from."""
    digest = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{little.dtype.str}{little.shape}".encode())
        digest.update(little.data)
    return digest.hexdigest()
