"""Dataset of four IDX files with MNIST's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.data.parts.data_file import find_files
from hpcdl.data.parts.dataset import DataError, Dataset
from hpcdl.data.parts.idx import read_labelled_images
from hpcdl.data.parts.in_memory import in_memory_dataset
from hpcdl.data.parts.padding import pad_to_square

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcdl.data.parts.augmentation import Augmentation

FILES: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx_dataset(
    name: str,
    path: str,
    *,
    installed: Sequence[Path],
    hint: str,
    pad_to: int | None,
    augmentation: Augmentation,
) -> Dataset:
    """Return the dataset ``name`` of ten classes from the first folder that contains any of :data:`FILES`.

    :func:`hpcdl.data.parts.data_file.find_files` searches the files. ``pad_to`` is the side for
    :func:`hpcdl.data.parts.padding.pad_to_square`; mean and deviation are those of the padded images.

    Raises DataError if files are missing or invalid (see :mod:`hpcdl.data.parts.idx`), if test images have another
    shape than training images, and for invalid settings.
    """
    folder, files = find_files(name, path, FILES, subfolders=(name,), installed=installed, hint=hint)
    train_images, train_labels = read_labelled_images(files[FILES[0]], files[FILES[1]], 10)
    test_images, test_labels = read_labelled_images(files[FILES[2]], files[FILES[3]], 10)
    if train_images.shape[1:3] != test_images.shape[1:3]:
        height, width = test_images.shape[1:3]
        raise DataError(
            f"{files[FILES[2]]}: images of {height} x {width}, but the training images are "
            f"{train_images.shape[1]} x {train_images.shape[2]}"
        )
    return in_memory_dataset(
        name,
        (pad_to_square(name, train_images, pad_to), train_labels),
        (pad_to_square(name, test_images, pad_to), test_labels),
        classes=10,
        source=str(folder),
        augmentation=augmentation,
    )
