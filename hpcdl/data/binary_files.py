"""MNIST and Fashion-MNIST in the IDX format, CIFAR-10 and CIFAR-100: small images, from local binary files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import DataError, Dataset, Labelled, check_labels, content, find_files, is_whole
from hpcdl.data.parts.splits import Augmentation, in_memory_dataset


def check_length(path: Path, data: bytes, expected: int, what: str) -> None:
    """Raise DataError if ``data`` of the file ``path`` has another number of bytes than ``what`` needs."""
    if len(data) != expected:
        problem = "truncated" if len(data) < expected else "too long"
        raise DataError(f"{path}: {problem}: {what} need {expected} bytes, it has {len(data)}")


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
    check_length(path, data, begin + math.prod(shape), f"{' x '.join(map(str, shape))} values")
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
    height, width = images.shape[1:3]
    if not is_whole(side, max(height, width)):
        raise DataError(
            f"{name}: pad_to must be a whole number of at least {max(height, width)}, for images of "
            f"{height} x {width}, not {side!r}"
        )
    rows, columns = (((side - length) // 2, (side - length + 1) // 2) for length in (height, width))
    return np.pad(images, ((0, 0), rows, columns, (0, 0)))


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
    :class:`hpcdl.data.parts.splits.Augmentation`. Source: LeCun, Bottou, Bengio and Haffner 1998 (Proc. IEEE
    86). Raises DataError for invalid files or settings.
    """
    augmentation = Augmentation(crop_padding=crop_padding, flip=flip)
    return idx_dataset("mnist", path, hint=HINT, pad_to=pad_to, augmentation=augmentation)


DEBIAN: Final = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Debian's package dataset-fashion-mnist."""


def fashion_mnist(
    *, path: str = "", pad_to: int | None = None, crop_padding: int = 0, flip: bool = False
) -> Dataset:
    """Fashion-MNIST: (28, 28, 1) images in ten classes, 60000 for training and 10000 for testing.

    As :func:`mnist`, with files in $HPCDL_DATA/fashion_mnist, $HPCDL_DATA, or the folder of Debian's package
    dataset-fashion-mnist. Source: Xiao, Rasul and Vollgraf 2017 (arXiv 1708.07747), MIT licence.
    """
    package = "apt-get install dataset-fashion-mnist, or train on hpcdl's digits by --set case.dataset=digits"
    augmentation, hint = Augmentation(crop_padding=crop_padding, flip=flip), f"{package}, or {HINT}"
    return idx_dataset("fashion_mnist", path, DEBIAN, hint=hint, pad_to=pad_to, augmentation=augmentation)


SIDE: Final = 32
CHANNELS: Final = 3
PIXELS: Final = CHANNELS * SIDE * SIDE
"""Bytes of an image: a plane of red, one of green, one of blue, each row by row."""


@dataclass(frozen=True)
class Archive:
    """Files of a dataset with their numbers of images, and the label bytes of a record with their classes.

    The last label is used. Files are searched in the folder of the dataset's name and in ``folder``.
    """

    train: Mapping[str, int]
    test: Mapping[str, int]
    labels: Mapping[str, int]
    folder: str


def cifar_dataset(name: str, path: str, archive: Archive, augmentation: Augmentation) -> Dataset:
    """Return the dataset ``name`` from the first folder that has any of its files. Raises DataError."""
    files, labels = [*archive.train, *archive.test], archive.labels
    origin = "get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html"
    hint = f"{origin} and set HPCDL_DATA to a folder that holds {', '.join(files)}"
    folder, present = find_files(name, path, files, subfolders=(name, archive.folder), hint=hint)

    def read(counts: Mapping[str, int]) -> Labelled:
        records = np.concatenate([read_records(present[file], count, labels) for file, count in counts.items()])
        planes = records[:, len(labels) :].reshape(-1, CHANNELS, SIDE, SIDE)
        return np.ascontiguousarray(np.moveaxis(planes, 1, 3)), records[:, len(labels) - 1].astype(np.int64)

    train, test, classes = read(archive.train), read(archive.test), list(labels.values())[-1]
    return in_memory_dataset(name, train, test, classes=classes, source=str(folder), augmentation=augmentation)


def read_records(path: Path, count: int, labels: Mapping[str, int]) -> NDArray[np.uint8]:
    """Return the records of a file, (count, label bytes + 3072).

    Source: A. Krizhevsky, the CIFAR-10 and CIFAR-100 page, "binary version". Raises DataError, naming the file.
    """
    data = content(path)
    check_length(path, data, count * (len(labels) + PIXELS), f"{count} images")
    records = np.frombuffer(data, np.uint8).reshape(count, -1)
    for column, (kind, limit) in enumerate(labels.items()):
        check_labels(path, records[:, column], limit, kind)
    return records


CIFAR_10: Final = Archive(
    {f"data_batch_{number}.bin": 10_000 for number in range(1, 6)},
    {"test_batch.bin": 10_000},
    {"label": 10},
    "cifar-10-batches-bin",
)
CIFAR_100: Final = Archive(
    {"train.bin": 50_000}, {"test.bin": 10_000}, {"coarse label": 20, "fine label": 100}, "cifar-100-binary"
)


def cifar10(*, path: str = "", crop_padding: int = 0, flip: bool = False) -> Dataset:
    """CIFAR-10: (32, 32, 3) images, 50000 for training and 10000 for testing. Nothing is downloaded.

    The six files of the binary version, plain or with .gz, are searched in ``path`` if given, otherwise in
    $HPCDL_DATA/cifar10, $HPCDL_DATA/cifar-10-batches-bin and $HPCDL_DATA. ``crop_padding`` (4 in the literature)
    and ``flip`` are settings of :class:`hpcdl.data.parts.splits.Augmentation`. Source: A. Krizhevsky,
    Learning Multiple Layers of Features from Tiny Images, 2009. Raises DataError for invalid files or settings.
    """
    return cifar_dataset("cifar10", path, CIFAR_10, Augmentation(crop_padding=crop_padding, flip=flip))


def cifar100(*, path: str = "", crop_padding: int = 0, flip: bool = False) -> Dataset:
    """CIFAR-100: (32, 32, 3) images, 50000 for training and 10000 for testing. Nothing is downloaded.

    As :func:`cifar10`, with two files that may be in $HPCDL_DATA/cifar100 or $HPCDL_DATA/cifar-100-binary. The
    labels are the fine ones.
    """
    return cifar_dataset("cifar100", path, CIFAR_100, Augmentation(crop_padding=crop_padding, flip=flip))


OFFERS: Final = {"mnist": mnist, "fashion_mnist": fashion_mnist, "cifar10": cifar10, "cifar100": cifar100}
