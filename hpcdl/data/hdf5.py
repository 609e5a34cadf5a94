"""Images of one HDF5 file, as large as ImageNet; each rank reads the images of its share from disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.dataset import DataError, Dataset, content_digest, data_root
from hpcdl.data.parts.splits import ImageSplit, PixelCounts, PixelNormalization
from hpcdl.trace.files import check_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

    import h5py
    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array


SPLITS: Final = ("train", "test")
DATASETS: Final = tuple(f"{split}/{name}" for split in SPLITS for name in ("images", "labels"))

SAMPLED: Final = 256
"""Images that determine mean and deviation if the file has no such attributes: 50 MB for ImageNet."""
DIGESTED: Final = 16
"""Images of each split in the digest if the file has no such attribute."""
_BATCH: Final = 32
"""Images of a sample in memory at a time."""
_CACHE: Final = 1 << 25
"""Bytes of HDF5's chunk cache, for files with several images per chunk."""


class Images:
    """Images of one split, read when needed."""

    def __init__(self, path: Path, dataset: h5py.Dataset) -> None:
        self._path = path
        self._dataset = dataset

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels of one image."""
        _, height, width, channels = self._dataset.shape
        return int(height), int(width), int(channels)

    def __len__(self) -> int:
        """Return the number of images."""
        return int(self._dataset.shape[0])

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the images at ``indices`` (n,), in that order, (n, H, W, C); they are read in the file's order.

        Raises IndexError for an index out of range, and OSError, naming the file, for an unreadable image.
        """
        import h5py

        shape = self.shape
        pixels = np.empty((len(indices), *shape), np.uint8)
        # the low-level interface: h5py's indexing takes 50 us more per image, and milliseconds for a list
        stored = self._dataset.id.get_space()
        held = h5py.h5s.create_simple(shape)
        for place in np.argsort(indices, kind="stable").tolist():
            index = int(indices[place])
            if not 0 <= index < len(self):
                raise IndexError(f"there is no image {index} among {len(self)}")
            stored.select_hyperslab((index, 0, 0, 0), (1, *shape))
            try:
                self._dataset.id.read(held, stored, pixels[place])
            except OSError as error:
                raise OSError(f"{self._path}: {self._dataset.name[1:]}[{index}]: {_line(error)}") from error
        return pixels

    def sample(self, most: int) -> Iterator[NDArray[np.uint8]]:
        """Yield at most so many images, evenly spaced, a few at a time."""
        count = min(most, len(self))
        chosen = np.arange(count, dtype=np.int64) * len(self) // max(1, count)
        for begin in range(0, count, _BATCH):
            yield self(chosen[begin : begin + _BATCH])


class ImageFile:
    """An open HDF5 file that matches the layout; it stays open for its splits."""

    def __init__(self, path: Path) -> None:
        """Open and check ``path``; images are read only to compute missing attributes.

        Raises DataError, one line that names the file, if it is missing, not HDF5, truncated or differs from the
        layout, for labels out of range, and for an empty split.
        """
        self.path = path
        self._file = _open_file(path)
        try:
            self._check()
            self.train, self.test = (Images(path, self._file[f"{split}/images"]) for split in SPLITS)
            self.train_labels, self.test_labels = (
                self._file[f"{split}/labels"][()].astype(np.int64) for split in SPLITS
            )
            self.classes = self._classes()
            self.normalization = self._normalization()
            self.digest = self._digest()
            self.source = str(self._file.attrs.get("source", path))
        except (OSError, RuntimeError, KeyError, TypeError, ValueError, OverflowError) as error:
            self._file.close()
            raise DataError(f"{path}: damaged or invalid: {_line(error)}") from error
        except DataError:
            self._file.close()
            raise

    def _check(self) -> None:
        """Raise DataError unless the four datasets are present and consistent."""
        import h5py

        file, path = self._file, self.path
        for name in DATASETS:
            if not isinstance(file.get(name), h5py.Dataset):
                raise DataError(f"{path}: lacks {name}; it has {_datasets(file)}")
        for split in SPLITS:
            images, labels = file[f"{split}/images"], file[f"{split}/labels"]
            if images.dtype != np.uint8:
                raise DataError(f"{path}: {split}/images must be uint8, not {images.dtype}")
            if len(images.shape) != 4:
                raise DataError(
                    f"{path}: {split}/images must have 4 dimensions (images, height, width, channels), "
                    f"not {len(images.shape)}"
                )
            if labels.dtype.kind not in "iu" or len(labels.shape) != 1:
                raise DataError(
                    f"{path}: {split}/labels must be integers in 1 dimension, not {labels.dtype} in "
                    f"{len(labels.shape)}"
                )
            if len(images) != len(labels):
                raise DataError(f"{path}: {split} has {len(images)} images and {len(labels)} labels")
            if not images.size:
                raise DataError(f"{path}: {split}/images has no images")
        train, test = (file[f"{split}/images"].shape[1:] for split in SPLITS)
        if train != test:
            raise DataError(
                f"{path}: test/images are {' x '.join(map(str, test))}, but the training images are "
                f"{' x '.join(map(str, train))}"
            )

    def _classes(self) -> int:
        """Return the attribute, or one more than the largest label."""
        most = 1 + int(max(self.train_labels.max(), self.test_labels.max()))
        classes = int(self._file.attrs.get("classes", most))
        for split, labels in zip(SPLITS, (self.train_labels, self.test_labels), strict=True):
            wrong = np.flatnonzero((labels < 0) | (labels >= classes))
            if len(wrong):
                raise DataError(
                    f"{self.path}: {split}/labels: label {labels[wrong[0]]} at {wrong[0]} is out of range: "
                    f"{classes} classes"
                )
        return classes

    def _normalization(self) -> PixelNormalization:
        """Return the normalisation from the attributes, or from a sample of the training images."""
        attributes, channels = self._file.attrs, self.train.shape[2]
        if "mean" not in attributes or "std" not in attributes:
            counts = PixelCounts(channels)
            for images in self.train.sample(SAMPLED):
                counts.add(images)
            return counts.normalization()
        mean, std = (np.asarray(attributes[name], np.float64) for name in ("mean", "std"))
        if mean.shape != (channels,) or not ((mean >= 0) & (mean <= 1)).all():
            raise DataError(f"{self.path}: mean must be {channels} numbers from 0 to 1, of pixel values / 255")
        if std.shape != (channels,) or not ((std > 0) & (std <= 1)).all():
            raise DataError(f"{self.path}: std must be {channels} numbers above 0, of pixel values / 255")
        return PixelNormalization(mean, std)

    def _digest(self) -> str:
        """Return the attribute, or the digest of all labels and a sample of the images."""
        if "digest" in self._file.attrs:
            digest = self._file.attrs["digest"]
            return digest.decode() if isinstance(digest, bytes) else str(digest)
        parts: list[Array] = [self.train_labels, self.test_labels]
        for images in (self.train, self.test):
            parts += [np.array((len(images), *images.shape)), *images.sample(DIGESTED)]
        return content_digest(*parts)


def _datasets(file: h5py.File) -> str:
    """Return the names of the first few datasets."""
    import h5py

    names: list[str] = []
    file.visititems(lambda name, thing: names.append(name) if isinstance(thing, h5py.Dataset) else None)
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "no dataset"


def _open_file(path: Path) -> h5py.File:
    import h5py

    try:
        check_regular(path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise DataError(f"{path}: {'missing' if missing else f'cannot be read: {error.strerror}'}") from error
    try:
        # without locks, which some parallel file systems do not support
        return h5py.File(path, "r", locking=False, rdcc_nbytes=_CACHE)
    except OSError as error:
        raise DataError(f"{path}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if error.errno is not None:
        return f"cannot be read: {os.strerror(error.errno)}"
    if "truncated" in str(error):
        return "truncated HDF5 file"
    return "not an HDF5 file" if "signature not found" in str(error) else f"cannot be opened: {_line(error)}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def hdf5(*, path: str = "", crop: int | None = None, crop_padding: int = 0, flip: bool = False) -> Dataset:
    """Labelled images of one HDF5 file, such as ImageNet's, read from disk when needed.

    A relative ``path`` that does not exist is searched in $HPCDL_DATA. :mod:`hpcdl.data.hdf5`
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
