"""Fashion-MNIST: photographs of clothes, 28 x 28 pixels, from Debian's package or local files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.idx import FILES, idx_dataset

if TYPE_CHECKING:
    from hpcdl.data.parts.dataset import Dataset

DEBIAN: Final = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Debian's package dataset-fashion-mnist."""


def fashion_mnist(
    *, path: str = "", pad_to: int | None = None, crop_padding: int = 0, flip: bool = False
) -> Dataset:
    """Fashion-MNIST: (28, 28, 1) images in ten classes, 60000 for training and 10000 for testing.

    Nothing is downloaded. The files are searched in ``path`` if given, otherwise in $HPCDL_DATA/fashion_mnist,
    $HPCDL_DATA, and the folder of Debian's package dataset-fashion-mnist. ``pad_to`` adds a black border up to
    that side (32 for networks for CIFAR). ``crop_padding`` and ``flip`` are settings of
    :class:`hpcdl.data.parts.augmentation.Augmentation`. Source: Xiao, Rasul and Vollgraf 2017 (arXiv 1708.07747),
    MIT licence. Raises DataError for missing or invalid files and for invalid settings.
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
