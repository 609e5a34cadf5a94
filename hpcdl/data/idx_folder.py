"""A folder of four IDX files with MNIST's names: finding it and reading it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.data.dataset import DataError, Dataset
from hpcdl.data.idx import read_labelled_images
from hpcdl.data.in_memory import in_memory_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx_dataset(name: str, path: str, installed: Sequence[Path], hint: str) -> Dataset:
    """The dataset ``name`` of ten classes, from the first of these folders that holds any of :data:`FILES`.

    They are ``path`` alone if it is not empty; else $HPCDL_DATA/``name``, $HPCDL_DATA, and those of
    ``installed``. Each file may be plain or end in .gz; where both are there the plain one is read.

    Raises DataError, which tells the folders looked in and the ``hint`` on how to get the files, if there
    is no such folder; DataError if that folder lacks one of the four, if a file is bad (see
    :mod:`hpcdl.data.idx`), or if the test images have another shape than the training images.
    """
    if not isinstance(path, str):
        raise DataError(f"{name}: path must be the name of a folder, not {path!r}")
    folders = [Path(path)] if path else [*_data_folders(name), *installed]
    folder = next((folder for folder in folders if any(map(_present(folder).get, FILES))), None)
    if folder is None:
        looked = ", ".join(map(str, folders)) or "HPCDL_DATA, which is not set"
        raise DataError(f"{name}: not found in {looked}; {hint}")
    files = _present(folder)
    for file in FILES:
        if file not in files:
            raise DataError(f"{folder / file}: missing, also with .gz, although other files of {name} are there")
    train = read_labelled_images(files[FILES[0]], files[FILES[1]], 10)
    test = read_labelled_images(files[FILES[2]], files[FILES[3]], 10)
    if train[0].shape[1:3] != test[0].shape[1:3]:
        height, width = test[0].shape[1:3]
        raise DataError(
            f"{files[FILES[2]]}: images of {height} x {width}, but those to train on are "
            f"{train[0].shape[1]} x {train[0].shape[2]}"
        )
    return in_memory_dataset(name, train, test, classes=10, source=str(folder))


def _data_folders(name: str) -> list[Path]:
    root = os.environ.get("HPCDL_DATA", "")
    return [Path(root) / name, Path(root)] if root else []


def _present(folder: Path) -> dict[str, Path]:
    candidates = {file: (folder / file, folder / f"{file}.gz") for file in FILES}
    try:
        return {file: path for file, two in candidates.items() for path in reversed(two) if path.exists()}
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
