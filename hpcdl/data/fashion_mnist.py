"""Fashion-MNIST: photographs of clothes, 28 x 28, from Debian's package or from files the user has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.data.augmentation import Augmentation
from hpcdl.data.idx_folder import FILES, idx_dataset

if TYPE_CHECKING:
    from hpcdl.data.dataset import Dataset

DEBIAN: Final = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the four files."""


def fashion_mnist(
    *, path: str = "", pad_to: int | None = None, crop_padding: int = 0, flip: bool = False
) -> Dataset:
    """Ten classes of (28, 28, 1) images, 60000 to train on and 10000 held out. Nothing is downloaded.

    Looked for in the folder ``path`` if given, else in $HPCDL_DATA/fashion_mnist, $HPCDL_DATA, and where
    Debian's package dataset-fashion-mnist installs. With ``pad_to`` images are that side long, black around
    (32 suits networks made for CIFAR); ``crop_padding`` and ``flip`` are those of
    :class:`hpcdl.data.augmentation.Augmentation`. Source: Xiao, Rasul and Vollgraf 2017 (arXiv 1708.07747),
    MIT licence. Raises DataError if the files are missing or bad, or a setting is out of range.
    """
    return idx_dataset(
        "fashion_mnist",
        path,
        installed=(DEBIAN,),
        hint="apt-get install dataset-fashion-mnist, or "
        f"set HPCDL_DATA to a folder that holds {FILES[0]}[.gz], {FILES[1]}[.gz] and the same of t10k",
        pad_to=pad_to,
        augmentation=Augmentation(crop_padding=crop_padding, flip=flip),
    )
