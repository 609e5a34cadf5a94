"""MNIST: handwritten digits, 28 x 28, from files the user has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.data.augmentation import Augmentation
from hpcdl.data.idx_folder import FILES, idx_dataset

if TYPE_CHECKING:
    from hpcdl.data.dataset import Dataset


def mnist(*, path: str = "", pad_to: int | None = None, crop_padding: int = 0, flip: bool = False) -> Dataset:
    """Ten classes of (28, 28, 1) images, 60000 to train on and 10000 held out. Nothing is downloaded.

    Looked for in the folder ``path`` if given, else in $HPCDL_DATA/mnist, then in $HPCDL_DATA. With
    ``pad_to`` images are that side long, black around; ``crop_padding`` and ``flip`` are those of
    :class:`hpcdl.data.augmentation.Augmentation`. Source: LeCun, Bottou, Bengio and Haffner 1998 (Proc. IEEE
    86). Raises DataError if the files are missing or bad, or a setting is out of range.
    """
    return idx_dataset(
        "mnist",
        path,
        installed=(),
        hint=f"set HPCDL_DATA to a folder that holds {FILES[0]}[.gz], {FILES[1]}[.gz] and the same of t10k",
        pad_to=pad_to,
        augmentation=Augmentation(crop_padding=crop_padding, flip=flip),
    )
