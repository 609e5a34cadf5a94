"""MNIST: handwritten digits, 28 x 28 pixels, from local files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.idx import FILES, idx_dataset

if TYPE_CHECKING:
    from hpcdl.data.parts.dataset import Dataset


def mnist(*, path: str = "", pad_to: int | None = None, crop_padding: int = 0, flip: bool = False) -> Dataset:
    """MNIST: (28, 28, 1) images in ten classes, 60000 for training and 10000 for testing.

    Nothing is downloaded. The files are searched in ``path`` if given, otherwise in $HPCDL_DATA/mnist and
    $HPCDL_DATA. ``pad_to`` adds a black border up to that side. ``crop_padding`` and ``flip`` are settings of
    :class:`hpcdl.data.parts.augmentation.Augmentation`. Source: LeCun, Bottou, Bengio and Haffner 1998 (Proc. IEEE
    86). Raises DataError for missing or invalid files and for invalid settings.
    """
    return idx_dataset(
        "mnist",
        path,
        installed=(),
        hint=f"set HPCDL_DATA to a folder that holds {FILES[0]}[.gz], {FILES[1]}[.gz] and the same of t10k",
        pad_to=pad_to,
        augmentation=Augmentation(crop_padding=crop_padding, flip=flip),
    )
