"""CIFAR-10 and CIFAR-100: photographs of 32 x 32 pixels, from local binary files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.dataset import DataError, Dataset, content, find_files
from hpcdl.data.parts.splits import in_memory_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hpcdl.data.parts.dataset import Dataset


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
    with their numbers of classes; the last one is used. :func:`hpcdl.data.parts.dataset.find_files` searches the
    files.

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
    return in_memory_dataset(
        name,
        read_records([(present[file], count) for file, count in train.items()], labels),
        read_records([(present[file], count) for file, count in test.items()], labels),
        classes=list(labels.values())[-1],
        source=str(folder),
        augmentation=augmentation,
    )


def read_records(
    files: Sequence[tuple[Path, int]], labels: Mapping[str, int]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (n, 32, 32, 3) and labels (n,) of ``files``, given with their numbers of images.

    ``labels`` names the label bytes at the beginning of a record, with their numbers of classes; the last one is
    returned. Source: A. Krizhevsky, the CIFAR-10 and CIFAR-100 page, "binary version".

    Raises DataError, naming the file, if it cannot be read, has a wrong size or a label out of range.
    """
    total = sum(count for _, count in files)
    images = np.empty((total, SIDE, SIDE, CHANNELS), np.uint8)
    classes = np.empty(total, np.int64)
    begin, record = 0, len(labels) + PIXELS
    for path, count in files:
        data = content(path)
        if len(data) != count * record:
            problem = "truncated" if len(data) < count * record else "too long"
            raise DataError(f"{path}: {problem}: {count} images need {count * record} bytes, it has {len(data)}")
        records = np.frombuffer(data, np.uint8).reshape(count, record)
        for place, (kind, limit) in enumerate(labels.items()):
            worst = int(records[:, place].argmax())
            if records[worst, place] >= limit:
                raise DataError(
                    f"{path}: {kind} {records[worst, place]} at {worst} is out of range: {limit} classes"
                )
        here = slice(begin, begin + count)
        planes = records[:, len(labels) :].reshape(count, CHANNELS, SIDE, SIDE)
        images[here] = np.moveaxis(planes, 1, 3)
        classes[here] = records[:, len(labels) - 1]
        begin += count
    return images, classes


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
