"""Images from one HDF5 file, as large as ImageNet: they stay on disk, and each rank reads those of its share."""

from __future__ import annotations

import os
from pathlib import Path

from hpcdl.data.augmentation import Augmentation
from hpcdl.data.dataset import DataError, Dataset
from hpcdl.data.image_file import ImageFile
from hpcdl.data.image_split import ImageSplit


def hdf5(*, path: str = "", crop: int | None = None, crop_padding: int = 0, flip: bool = False) -> Dataset:
    """Labelled images of one HDF5 file, ImageNet's for example, read from disk as they are needed.

    A relative ``path`` that is not here is looked for in $HPCDL_DATA. :mod:`hpcdl.data.image_file` has the
    layout, ``python -m hpcdl.data.convert`` makes such a file of folders of JPEG or PNG. With ``crop`` images
    are that side long: a training image is cut out at random, a test image's middle is taken. ``crop``,
    ``crop_padding`` and ``flip`` are those of :class:`hpcdl.data.augmentation.Augmentation`; for ImageNet: 224,
    0, true.

    Mean and deviation are the file's attributes, or those of 256 evenly spaced training images; the digest is
    an attribute, or that of all labels and 16 images of each split. Raises DataError if the file is missing,
    damaged or holds something else, or a setting is out of range.
    """
    if not isinstance(path, str) or not path:
        raise DataError(f"hdf5: path must be the name of an HDF5 file, not {path!r}")
    file = ImageFile(_found(Path(path)))
    augmentation = Augmentation(crop=crop, crop_padding=crop_padding, flip=flip)
    augmentation.check(str(file.path), file.train.shape)
    return Dataset(
        name="hdf5",
        train=ImageSplit(file.train, file.train_labels, file.normalization, augmentation),
        test=ImageSplit(file.test, file.test_labels, file.normalization, augmentation),
        shape=augmentation.cut(file.train.shape),
        classes=file.classes,
        source=file.source,
        digest=file.digest,
    )


def _found(path: Path) -> Path:
    root = os.environ.get("HPCDL_DATA", "")
    try:
        return Path(root) / path if root and not path.exists() and (Path(root) / path).exists() else path
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
