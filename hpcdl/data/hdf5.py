"""Images of one HDF5 file, as large as ImageNet; each rank reads the images of its share from disk.

The file has ``train/images`` and ``test/images``, uint8 (images, height, width, channels), and their classes
``train/labels`` and ``test/labels``, integers from 0 (images,). Two attributes are optional: ``mean`` and ``std``
(channels,) of pixel values / 255 over the training images.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import DataError, Dataset, class_numbers, content_digest, found_file, reading
from hpcdl.data.parts.splits import Augmentation, ImageSplit, PixelCounts, PixelNormalization
from hpcdl.trace.files import check_regular

if TYPE_CHECKING:
    import h5py


SAMPLED: Final = 256
"""Images that determine mean and deviation if the file has no such attributes: 50 MB for ImageNet."""


class Images:
    """Images of one split, read when needed."""

    def __init__(self, path: Path, dataset: "h5py.Dataset") -> None:
        self._path = path
        self._dataset = dataset
        self.shape: tuple[int, int, int] = dataset.shape[1:]

    def __len__(self) -> int:
        return int(self._dataset.shape[0])

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the images at ``indices`` (n,), in that order, (n, H, W, C); they are read in the file's order.

        Raises IndexError for an index out of range, and OSError, naming the file, for an unreadable image.
        """
        pixels = np.empty((len(indices), *self.shape), np.uint8)
        for row in np.argsort(indices, kind="stable").tolist():
            index = int(indices[row])
            if not 0 <= index < len(self):
                raise IndexError(f"there is no image {index} among {len(self)}")
            try:
                self._dataset.read_direct(pixels, np.s_[index], np.s_[row])
            except OSError as error:
                line = " ".join(str(error).split())
                raise OSError(f"{self._path}: {self._dataset.name[1:]}[{index}]: {line}") from error
        return pixels

    def sample(self, most: int) -> NDArray[np.uint8]:
        """Return at most so many images, evenly spaced."""
        count = min(most, len(self))
        return self(np.arange(count, dtype=np.int64) * len(self) // count)


def hdf5(*, path: str = "", crop: int | None = None, crop_padding: int = 0, flip: bool = False) -> Dataset:
    """Labelled images of one HDF5 file, such as ImageNet's, read from disk when needed.

    A relative ``path`` that does not exist is searched in $HPCDL_DATA. :mod:`hpcdl.data.hdf5` describes the
    layout; ``python -m hpcdl.data.convert`` writes such a file. ``crop`` cuts squares of that side, at random from
    training images, from the centre of test images. ``crop``, ``crop_padding`` and ``flip`` are settings of
    :class:`hpcdl.data.parts.splits.Augmentation`; for ImageNet: 224, 0, true.

    Mean and deviation are attributes of the file, or are computed from 256 evenly spaced training images. The
    digest covers all labels and 16 images of each split. Raises DataError for an invalid file or setting.
    """
    if not isinstance(path, str) or not path:
        raise DataError(f"hdf5: path must be the name of an HDF5 file, not {path!r}")
    source = found_file(Path(path))
    with reading(source):
        file = _open_file(source)
        (train, train_labels), (test, test_labels) = (_split(file, source, split) for split in ("train", "test"))
        if train.shape != test.shape:
            raise DataError(f"{source}: test/images are {test.shape}, but the training images are {train.shape}")
        normalization = _normalization(file, train)
        sizes = [np.array((len(images), *images.shape)) for images in (train, test)]
        samples = [sizes[0], train.sample(16), sizes[1], test.sample(16)]
    augmentation = Augmentation(crop=crop, crop_padding=crop_padding, flip=flip)
    augmentation.check(str(source), train.shape)
    return Dataset(
        name="hdf5",
        train=ImageSplit(train, train_labels, normalization, augmentation),
        test=ImageSplit(test, test_labels, normalization, augmentation),
        shape=augmentation.cut(train.shape),
        classes=1 + int(max(train_labels.max(), test_labels.max())),
        source=str(source),
        digest=content_digest(train_labels, test_labels, *samples),
    )


def _split(file: "h5py.File", path: Path, split: str) -> tuple[Images, NDArray[np.int64]]:
    import h5py

    images, labels = datasets = [file.get(f"{split}/{name}") for name in ("images", "labels")]
    if not all(isinstance(dataset, h5py.Dataset) for dataset in datasets):
        raise DataError(f"{path}: lacks {split}/images or {split}/labels")
    if images.dtype != np.uint8 or len(images.shape) != 4 or not images.size:
        raise DataError(
            f"{path}: {split}/images must be uint8 (images, height, width, channels) and not empty, "
            f"not {images.dtype} {images.shape}"
        )
    # labels of another shape are refused unread
    values = labels[()] if labels.shape == images.shape[:1] else labels
    classes = class_numbers(f"{path}: {split}/labels", values, len(images))
    for dataset in datasets:
        _check_stored(path, dataset)
    return Images(path, images), classes


def _check_stored(path: Path, dataset: "h5py.Dataset") -> None:
    """Raise DataError if HDF5 would return zeros in place of values: of other files, or never written."""
    where = f"{path}: {dataset.name[1:]}"
    if dataset.is_virtual or dataset.external:
        raise DataError(f"{where}: its values are in other files, and zeros where these lack them; copy them")
    shape, chunks = dataset.shape, dataset.chunks
    parts = math.prod(-(-length // side) for length, side in zip(shape, chunks or shape, strict=True))
    written = dataset.id.get_num_chunks() if chunks else int(dataset.id.get_storage_size() > 0)
    if written < parts:
        raise DataError(f"{where}: never written: {parts - written} of {parts} chunks")


def _normalization(file: "h5py.File", train: Images) -> PixelNormalization:
    """Return the normalisation from the attributes, or from a sample of the training images."""
    channels = train.shape[2]
    if "mean" not in file.attrs or "std" not in file.attrs:
        counts = PixelCounts(channels)
        counts.add(train.sample(SAMPLED))
        return counts.normalization()
    mean, std = (np.asarray(file.attrs[name], np.float64) for name in ("mean", "std"))
    if not (mean.shape == std.shape == (channels,) and ((mean >= 0) & (mean <= 1) & (std > 0) & (std <= 1)).all()):
        raise ValueError(f"mean and std must be {channels} numbers each from 0 to 1, of pixel values / 255")
    return PixelNormalization(mean, std)


def _open_file(path: Path) -> "h5py.File":
    import h5py

    check_regular(path)
    path.open("rb").close()  # errors of h5py have no reason
    try:
        # without locks, which some parallel file systems lack; the cache is for several images per chunk
        return h5py.File(path, "r", locking=False, rdcc_nbytes=1 << 25)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: not HDF5, or truncated: {error}") from error
