"""IDX, the file format of MNIST: a header and an array, often gzipped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.data.parts.data_file import content
from hpcdl.data.parts.dataset import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_DTYPES: Final = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> NDArray[Any]:
    """Return the array in the file ``path``, unpacked if its name ends in .gz; native byte order, read-only.

    A file has two zero bytes, a type code, the number of dimensions, each dimension as a big-endian 32-bit number,
    and the values, big-endian and C-ordered. Source: Y. LeCun, THE MNIST DATABASE, "the IDX file format".

    Raises DataError, naming the file, if it is missing, unreadable, not gzip, truncated, too long or not IDX.
    """
    data = content(path)
    if len(data) < 4:
        raise DataError(f"{path}: truncated: {len(data)} bytes, less than an IDX header")
    if data[:2] != b"\0\0" or data[2] not in _DTYPES or data[3] == 0:
        raise DataError(f"{path}: not an IDX file: begins with {data[:4].hex(' ')}, not with 00 00 and a type")
    dtype = np.dtype(_DTYPES[data[2]])
    begin = 4 + 4 * data[3]
    if len(data) < begin:
        raise DataError(f"{path}: truncated: {len(data)} bytes, less than its header of {begin}")
    shape = tuple(int(length) for length in np.frombuffer(data, ">u4", data[3], 4))
    expected = begin + dtype.itemsize * math.prod(shape)
    if len(data) != expected:
        problem = "truncated" if len(data) < expected else "too long"
        form = " x ".join(map(str, shape))
        raise DataError(f"{path}: {problem}: {form} values need {expected} bytes, it has {len(data)}")
    return np.frombuffer(data, dtype, offset=begin).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def read_labelled_images(
    images_path: Path, labels_path: Path, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return grey images (n, H, W, 1) and labels (n,) of two IDX files; n >= 1.

    Raises DataError, naming the file, if either cannot be read, has a wrong dtype or number of dimensions, or is
    empty, if their counts differ, and if a label is not less than ``classes``.
    """
    images = _bytes(images_path, "images", 3)
    labels = _bytes(labels_path, "labels", 1)
    if len(images) != len(labels):
        raise DataError(f"{labels_path}: {len(labels)} labels, but {images_path} has {len(images)} images")
    if images.size == 0:
        raise DataError(f"{images_path}: no images")
    worst = int(labels.argmax())
    if labels[worst] >= classes:
        raise DataError(f"{labels_path}: label {labels[worst]} at {worst} is out of range: {classes} classes")
    return images[..., np.newaxis], labels.astype(np.int64)


def _bytes(path: Path, content_name: str, dimensions: int) -> NDArray[np.uint8]:
    array = read_idx(path)
    if array.dtype != np.uint8 or array.ndim != dimensions:
        raise DataError(
            f"{path}: {content_name} must be uint8 in {dimensions} dimensions, not {array.dtype} in {array.ndim}"
        )
    return array
