"""Images of one HDF5 file, as large as ImageNet; each rank reads the images of its share from disk."""

from __future__ import annotations

from pathlib import Path

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.data_file import data_root
from hpcdl.data.parts.dataset import DataError, Dataset
from hpcdl.data.parts.image_file import ImageFile
from hpcdl.data.parts.splits import ImageSplit


def hdf5(*, path: str = "", crop: int | None = None, crop_padding: int = 0, flip: bool = False) -> Dataset:
    """Labelled images of one HDF5 file, such as ImageNet's, read from disk when needed.

    A relative ``path`` that does not exist is searched in $HPCDL_DATA. :mod:`hpcdl.data.parts.image_file`
    describes the layout; ``python -m hpcdl.data.convert`` writes such a file from folders of JPEG or PNG. ``crop``
    cuts squares of that side, at random from training images, from the centre of test images. ``crop``,
    ``crop_padding`` and ``flip`` are settings of :class:`hpcdl.data.parts.augmentation.Augmentation`; for
    ImageNet: 224, 0, true.

    Mean and deviation are attributes of the file, or are computed from 256 evenly spaced training images. The
    digest is an attribute, or covers all labels and 16 images of each split. Raises DataError for a missing,
    damaged or different file and for invalid settings.
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
    root = data_root()
    try:
        return Path(root) / path if root and not path.exists() and (Path(root) / path).exists() else path
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
