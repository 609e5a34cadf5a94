"""MNIST and Fashion-MNIST: images of 28 x 28 pixels, from local files in the IDX format."""

import math
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.dataset import DataError, Dataset, check_labels, content, find_files, is_whole
from hpcdl.data.parts.splits import in_memory_dataset


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the bytes in the file ``path``, unpacked if its name ends in .gz; read-only.

    A file has two zero bytes, the code 8 of bytes, the number of dimensions, each dimension as a big-endian 32-bit
    number, and the values, C-ordered. Source: Y. LeCun, THE MNIST DATABASE, "the IDX file format".

    Raises DataError, naming the file, if it is missing, unreadable, not gzip, truncated, too long or not IDX.
    """
    data, begin = content(path), 4 + 4 * dimensions
    if len(data) < begin or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(f"{path}: not an IDX file of bytes in {dimensions} dimensions")
    shape = np.frombuffer(data, ">u4", dimensions, 4).tolist()
    expected = begin + math.prod(shape)
    if len(data) != expected:
        problem = "truncated" if len(data) < expected else "too long"
        form = " x ".join(map(str, shape))
        raise DataError(f"{path}: {problem}: {form} values need {expected} bytes, it has {len(data)}")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


def read_labelled_images(images_path: Path, labels_path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return grey images (n, H, W, 1) and labels (n,) of two IDX files; n >= 1. Raises DataError."""
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(f"{labels_path}: {len(labels)} labels, but {images_path} has {len(images)} images")
    if images.size == 0:
        raise DataError(f"{images_path}: no images")
    check_labels(labels_path, labels, CLASSES)
    return images[..., np.newaxis], labels.astype(np.int64)


def pad_to_square(name: str, images: NDArray[np.uint8], side: int | None) -> NDArray[np.uint8]:
    """Return ``images`` (n, H, W, C) centred in black squares, (n, side, side, C); unchanged if ``side`` is None.

    LeNet-5 pads MNIST's 28 x 28 to 32 x 32 (LeCun et al. 1998, section II.B). An odd row or column is added at the
    bottom or right. Raises DataError, beginning with ``name``, for an invalid side.
    """
    if side is None:
        return images
    count, height, width, channels = images.shape
    if not is_whole(side, max(height, width)):
        raise DataError(
            f"{name}: pad_to must be a whole number of at least {max(height, width)}, for images of "
            f"{height} x {width}, not {side!r}"
        )
    top, left = (side - height) // 2, (side - width) // 2
    padded = np.zeros((count, side, side, channels), np.uint8)
    padded[:, top : top + height, left : left + width] = images
    return padded


CLASSES: Final = 10
FILES: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
HINT: Final = f"set HPCDL_DATA to a folder that holds {FILES[0]}[.gz], {FILES[1]}[.gz] and the same of t10k"


def idx_dataset(
    name: str, path: str, *installed: Path, hint: str, pad_to: int | None, augmentation: Augmentation
) -> Dataset:
    """Return the dataset ``name`` from the first folder that has any of :data:`FILES`. Raises DataError."""
    folder, files = find_files(name, path, FILES, subfolders=(name,), installed=installed, hint=hint)
    train_images, train_labels = read_labelled_images(files[FILES[0]], files[FILES[1]])
    test_images, test_labels = read_labelled_images(files[FILES[2]], files[FILES[3]])
    if train_images.shape[1:3] != test_images.shape[1:3]:
        shapes = (" x ".join(map(str, images.shape[1:3])) for images in (test_images, train_images))
        raise DataError(f"{files[FILES[2]]}: images of {', but the training images are '.join(shapes)}")
    return in_memory_dataset(
        name,
        (pad_to_square(name, train_images, pad_to), train_labels),
        (pad_to_square(name, test_images, pad_to), test_labels),
        classes=CLASSES,
        source=str(folder),
        augmentation=augmentation,
    )


def mnist(*, path: str = "", pad_to: int | None = None, crop_padding: int = 0, flip: bool = False) -> Dataset:
    """MNIST: (28, 28, 1) images in ten classes, 60000 for training and 10000 for testing.

    Nothing is downloaded. The files are searched in ``path`` if given, otherwise in $HPCDL_DATA/mnist and
    $HPCDL_DATA. ``pad_to`` adds a black border up to that side. ``crop_padding`` and ``flip`` are settings of
    :class:`hpcdl.data.parts.augmentation.Augmentation`. Source: LeCun, Bottou, Bengio and Haffner 1998 (Proc. IEEE
    86). Raises DataError for invalid files or settings.
    """
    augmentation = Augmentation(crop_padding=crop_padding, flip=flip)
    return idx_dataset("mnist", path, hint=HINT, pad_to=pad_to, augmentation=augmentation)


DEBIAN: Final = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Debian's package dataset-fashion-mnist."""
DEBIAN_HINT: Final = (
    "apt-get install dataset-fashion-mnist, or train on the package's digits by --set case.dataset=digits"
)


def fashion_mnist(
    *, path: str = "", pad_to: int | None = None, crop_padding: int = 0, flip: bool = False
) -> Dataset:
    """Fashion-MNIST: (28, 28, 1) images in ten classes, 60000 for training and 10000 for testing.

    As :func:`mnist`, with files in $HPCDL_DATA/fashion_mnist, $HPCDL_DATA, or the folder of Debian's package
    dataset-fashion-mnist. Source: Xiao, Rasul and Vollgraf 2017 (arXiv 1708.07747), MIT licence.
    """
    augmentation, hint = Augmentation(crop_padding=crop_padding, flip=flip), f"{DEBIAN_HINT}, or {HINT}"
    return idx_dataset("fashion_mnist", path, DEBIAN, hint=hint, pad_to=pad_to, augmentation=augmentation)


OFFERS: Final = {"mnist": mnist, "fashion_mnist": fashion_mnist}
