"""CIFAR-100: photographs of 32 x 32 pixels in a hundred classes, from local binary files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.cifar_binary import cifar_dataset

if TYPE_CHECKING:
    from hpcdl.data.parts.dataset import Dataset

TRAIN: Final = {"train.bin": 50_000}
"""Number of images in each file."""
TEST: Final = {"test.bin": 10_000}


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
        train=TRAIN,
        test=TEST,
        labels={"coarse label": 20, "fine label": 100},
        subfolders=("cifar100", "cifar-100-binary"),
        augmentation=Augmentation(crop_padding=crop_padding, flip=flip),
    )
