"""CIFAR-10 and CIFAR-100: photographs of 32 x 32 pixels, from local binary files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.dataset import DataError, Dataset, Labelled, check_labels, content, find_files
from hpcdl.data.parts.splits import in_memory_dataset

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
    data, size = content(path), count * (len(labels) + PIXELS)
    if len(data) != size:
        problem = "truncated" if len(data) < size else "too long"
        raise DataError(f"{path}: {problem}: {count} images need {size} bytes, it has {len(data)}")
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
    and ``flip`` are settings of :class:`hpcdl.data.parts.augmentation.Augmentation`. Source: A. Krizhevsky,
    Learning Multiple Layers of Features from Tiny Images, 2009. Raises DataError for invalid files or settings.
    """
    return cifar_dataset("cifar10", path, CIFAR_10, Augmentation(crop_padding=crop_padding, flip=flip))


def cifar100(*, path: str = "", crop_padding: int = 0, flip: bool = False) -> Dataset:
    """CIFAR-100: (32, 32, 3) images, 50000 for training and 10000 for testing. Nothing is downloaded.

    As :func:`cifar10`, with two files that may be in $HPCDL_DATA/cifar100 or $HPCDL_DATA/cifar-100-binary. The
    labels are the fine ones.
    """
    return cifar_dataset("cifar100", path, CIFAR_100, Augmentation(crop_padding=crop_padding, flip=flip))


OFFERS: Final = {"cifar10": cifar10, "cifar100": cifar100}
