"""CIFAR-10 and CIFAR-100: photographs of 32 x 32 pixels, from local binary files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.dataset import DataError, Dataset, check_labels, content, find_files
from hpcdl.data.parts.splits import in_memory_dataset

SIDE: Final = 32
CHANNELS: Final = 3
PIXELS: Final = CHANNELS * SIDE * SIDE
"""Bytes of an image: a plane of red, one of green, one of blue, each row by row."""


def cifar_dataset(
    name: str,
    path: str,
    *,
    train: Mapping[str, int],
    test: Mapping[str, int],
    labels: Mapping[str, int],
    subfolders: Sequence[str],
    augmentation: Augmentation,
) -> Dataset:
    """Return the dataset ``name`` from the first folder that contains any of its files.

    ``train`` and ``test`` give the number of images in each file. ``labels`` names the label bytes of a record,
    with their numbers of classes; the last one is used.

    Raises DataError, naming the file, for a missing file, a wrong size or a label out of range, and for invalid
    settings.
    """
    files = [*train, *test]
    folder, present = find_files(
        name,
        path,
        files,
        subfolders=subfolders,
        hint=f"get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html and set HPCDL_DATA "
        f"to a folder that holds {', '.join(files)}",
    )

    def read(counts: Mapping[str, int]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        records = np.concatenate([read_records(present[file], count, labels) for file, count in counts.items()])
        planes = records[:, len(labels) :].reshape(-1, CHANNELS, SIDE, SIDE)
        images = np.ascontiguousarray(np.moveaxis(planes, 1, 3))
        return images, records[:, len(labels) - 1].astype(np.int64)

    classes = list(labels.values())[-1]
    return in_memory_dataset(
        name, read(train), read(test), classes=classes, source=str(folder), augmentation=augmentation
    )


def read_records(path: Path, count: int, labels: Mapping[str, int]) -> NDArray[np.uint8]:
    """Return the records of a file, (count, label bytes + 3072).

    Source: A. Krizhevsky, the CIFAR-10 and CIFAR-100 page, "binary version". Raises DataError, naming the file, if
    it cannot be read, has a wrong size or a label out of range.
    """
    data, size = content(path), count * (len(labels) + PIXELS)
    if len(data) != size:
        problem = "truncated" if len(data) < size else "too long"
        raise DataError(f"{path}: {problem}: {count} images need {size} bytes, it has {len(data)}")
    records = np.frombuffer(data, np.uint8).reshape(count, -1)
    for place, (kind, limit) in enumerate(labels.items()):
        check_labels(path, records[:, place], limit, kind)
    return records


TRAIN_10: Final = {f"data_batch_{number}.bin": 10_000 for number in range(1, 6)}
"""Number of images in each file."""
TEST_10: Final = {"test_batch.bin": 10_000}


def cifar10(*, path: str = "", crop_padding: int = 0, flip: bool = False) -> Dataset:
    """CIFAR-10: (32, 32, 3) images, 50000 for training and 10000 for testing. Nothing is downloaded.

    The six files of the binary version, plain or with .gz, are searched in ``path`` if given, otherwise in
    $HPCDL_DATA/cifar10, $HPCDL_DATA/cifar-10-batches-bin and $HPCDL_DATA. ``crop_padding`` (4 in the literature)
    and ``flip`` are settings of :class:`hpcdl.data.parts.augmentation.Augmentation`. Source: A. Krizhevsky,
    Learning Multiple Layers of Features from Tiny Images, 2009. Raises DataError for missing or invalid files and
    for invalid settings.
    """
    return cifar_dataset(
        "cifar10",
        path,
        train=TRAIN_10,
        test=TEST_10,
        labels={"label": 10},
        subfolders=("cifar10", "cifar-10-batches-bin"),
        augmentation=Augmentation(crop_padding=crop_padding, flip=flip),
    )


TRAIN_100: Final = {"train.bin": 50_000}
"""Number of images in each file."""
TEST_100: Final = {"test.bin": 10_000}


def cifar100(*, path: str = "", crop_padding: int = 0, flip: bool = False) -> Dataset:
    """CIFAR-100: (32, 32, 3) images, 50000 for training and 10000 for testing. Nothing is downloaded.

    The labels are the fine ones. The two files of the binary version, plain or with .gz, are searched in ``path``
    if given, otherwise in $HPCDL_DATA/cifar100, $HPCDL_DATA/cifar-100-binary and $HPCDL_DATA. ``crop_padding`` (4
    in the literature) and ``flip`` are settings of :class:`hpcdl.data.parts.augmentation.Augmentation`. Source: A.
    Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. Raises DataError for missing or
    invalid files and for invalid settings.
    """
    return cifar_dataset(
        "cifar100",
        path,
        train=TRAIN_100,
        test=TEST_100,
        labels={"coarse label": 20, "fine label": 100},
        subfolders=("cifar100", "cifar-100-binary"),
        augmentation=Augmentation(crop_padding=crop_padding, flip=flip),
    )


OFFERS: Final = {"cifar10": cifar10, "cifar100": cifar100}
