"""CIFAR-10: small photographs, 32 x 32, from the binary files the user has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.data.augmentation import Augmentation
from hpcdl.data.cifar_binary import cifar_dataset

if TYPE_CHECKING:
    from hpcdl.data.dataset import Dataset

TRAIN: Final = {f"data_batch_{number}.bin": 10_000 for number in range(1, 6)}
"""Files, and the images each holds."""
TEST: Final = {"test_batch.bin": 10_000}


def cifar10(*, path: str = "", crop_padding: int = 0, flip: bool = False) -> Dataset:
    """Ten classes of (32, 32, 3) images, 50000 to train on and 10000 held out. Nothing is downloaded.

    The six files of the binary version, each plain or with .gz, are looked for in the folder ``path`` if given,
    else in $HPCDL_DATA/cifar10, $HPCDL_DATA/cifar-10-batches-bin, $HPCDL_DATA. ``crop_padding`` (4 in the
    literature) and ``flip`` are those of :class:`hpcdl.data.augmentation.Augmentation`. Source: A. Krizhevsky,
    Learning Multiple Layers of Features from Tiny Images, 2009. Raises DataError if the files are missing or
    bad, or a setting is out of range.
    """
    return cifar_dataset(
        "cifar10",
        path,
        train=TRAIN,
        test=TEST,
        labels={"label": 10},
        subfolders=("cifar10", "cifar-10-batches-bin"),
        augmentation=Augmentation(crop_padding=crop_padding, flip=flip),
    )
