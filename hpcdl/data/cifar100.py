"""CIFAR-100: small photographs, 32 x 32, of a hundred classes, from the binary files the user has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.data.augmentation import Augmentation
from hpcdl.data.cifar_binary import cifar_dataset

if TYPE_CHECKING:
    from hpcdl.data.dataset import Dataset

TRAIN: Final = {"train.bin": 50_000}
"""The file, and the images it holds."""
TEST: Final = {"test.bin": 10_000}


def cifar100(*, path: str = "", crop_padding: int = 0, flip: bool = False) -> Dataset:
    """A hundred classes of (32, 32, 3) images, 50000 to train on and 10000 held out. Nothing is downloaded.

    The fine labels are learned. The two files of the binary version, each plain or with .gz, are looked for in
    the folder ``path`` if given, else in $HPCDL_DATA/cifar100, $HPCDL_DATA/cifar-100-binary, $HPCDL_DATA.
    ``crop_padding`` (4 in the literature) and ``flip`` are those of
    :class:`hpcdl.data.augmentation.Augmentation`. Source: A. Krizhevsky, Learning Multiple Layers of Features
    from Tiny Images, 2009. Raises DataError if the files are missing or bad, or a setting is out of range.
    """
    return cifar_dataset(
        "cifar100",
        path,
        train=TRAIN,
        test=TEST,
        labels={"coarse label": 20, "fine label": 100},
        subfolders=("cifar100", "cifar-100-binary"),
        augmentation=Augmentation(crop_padding=crop_padding, flip=flip),
    )
