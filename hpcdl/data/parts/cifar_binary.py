"""Binary version of CIFAR-10 and CIFAR-100: records of a few label bytes and 3072 bytes of colour planes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.data.parts.data_file import content, find_files
from hpcdl.data.parts.dataset import DataError, Dataset
from hpcdl.data.parts.splits import in_memory_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hpcdl.data.parts.augmentation import Augmentation

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
    with their numbers of classes; the last one is used. :func:`hpcdl.data.parts.data_file.find_files` searches the
    files.

    Raises DataError, naming the file, for a missing file, a wrong size or a label out of range, and for invalid
    settings.
    """
    files = [*train, *test]
    folder, found = find_files(
        name,
        path,
        files,
        subfolders=subfolders,
        hint=f"get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html and set HPCDL_DATA "
        f"to a folder that holds {', '.join(files)}",
    )
    return in_memory_dataset(
        name,
        read_records([(found[file], count) for file, count in train.items()], labels),
        read_records([(found[file], count) for file, count in test.items()], labels),
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
