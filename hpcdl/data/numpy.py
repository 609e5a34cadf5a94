"""Arrays in NumPy's files: a .npz file, or a folder of .npy files, whose names state the split."""

import zipfile
from pathlib import Path
from typing import Final

import numpy as np

from hpcdl.data.parts.dataset import DataError, Dataset, Labelled, class_numbers, found_file, reading
from hpcdl.data.parts.splits import Augmentation, divided, in_memory_dataset
from hpcdl.fabric.comm import Array
from hpcdl.trace.files import MAX_DATA, check_regular

SPLITS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)
"""Names of the arrays of a source that states its split; the second form is that of Keras."""
MAX_RATIO: Final = 8
"""Bytes that a large .npz file may unpack to, by its own: images are packed to a half."""
MAX_VALUE: Final = float(np.finfo(np.float32).max)
WHOLE: Final[tuple[str, str]] = ("images", "labels")
"""Names of the arrays of a source that states no split."""


def numpy(
    *,
    path: str = "",
    test_share: float | None = None,
    channels_first: bool = False,
    crop: int | None = None,
    crop_padding: int = 0,
    flip: bool = False,
) -> Dataset:
    """Labelled images in NumPy's files: an .npz file, or a folder of .npy files, which are read when needed.

    The arrays are train_images, train_labels, test_images and test_labels, or x_train, y_train, x_test and y_test.
    Of images and labels alone, ``test_share`` is held out at random. Images are (n, height, width) or
    (n, height, width, channels), with ``channels_first`` (n, channels, height, width), of any numbers; their mean
    becomes 0 and their deviation 1. A relative ``path`` that does not exist is searched in $HPCDL_DATA. ``crop``,
    ``crop_padding`` and ``flip`` are settings of :class:`hpcdl.data.parts.splits.Augmentation`.
    Raises DataError for an invalid file, array or setting.
    """
    if not isinstance(path, str) or not path:
        raise DataError(f"numpy: path must be the name of an .npz file or of a folder of .npy files, not {path!r}")
    source = found_file(Path(path))
    names = _names(source)
    four = next((four for four in SPLITS if names >= {*four}), None)
    if four is not None and test_share is None:
        train, test = (_pair(source, *pair, channels_first) for pair in (four[:2], four[2:]))
        if train[0].shape[1:] != test[0].shape[1:]:
            shapes = (" x ".join(map(str, images.shape[1:])) for images, _ in (test, train))
            raise DataError(f"{source}: {four[2]} are {', but the training images are '.join(shapes)}")
    elif four is None and names >= {*WHOLE}:
        images, labels = _pair(source, *WHOLE, channels_first)
        parts = divided(source, len(images), test_share)
        train, test = ((images[part], labels[part]) for part in parts)
    elif four is not None:
        raise DataError(f"{source}: has {four[2]}, so that test_share must be left out")
    else:
        raise DataError(
            f"{source}: has {', '.join(sorted(names)) or 'no arrays'}, but needs {', '.join(SPLITS[0])}; "
            f"or {', '.join(SPLITS[1])}; or {' and '.join(WHOLE)}"
        )
    classes = 1 + int(max(train[1].max(), test[1].max()))
    augmentation = Augmentation(crop=crop, crop_padding=crop_padding, flip=flip)
    return in_memory_dataset("numpy", train, test, classes=classes, source=str(source), augmentation=augmentation)


def _names(source: Path) -> set[str]:
    if source.is_dir():
        return {file.stem for file in source.glob("*.npy")}
    with reading(source):
        packed = check_regular(source)
        try:
            archive = zipfile.ZipFile(source)
        except zipfile.BadZipFile:
            raise DataError(f"{source}: neither an .npz file nor a folder of .npy files") from None
        with archive:
            limit = max(MAX_DATA, MAX_RATIO * packed)
            if sum(member.file_size for member in archive.infolist()) > limit:
                raise DataError(
                    f"{source}: larger than {limit} bytes when unpacked; make it a folder of .npy files"
                )
            return {name.removesuffix(".npy") for name in archive.namelist()}


def _load(source: Path, name: str) -> Array:
    with reading(f"{source}: {name}"):
        if source.is_dir():
            check_regular(source / f"{name}.npy")
            return np.load(source / f"{name}.npy", mmap_mode="r")  # type: ignore[no-any-return]
        with np.load(source) as archive:
            return archive[name]  # type: ignore[no-any-return]


def _pair(source: Path, images_name: str, labels_name: str, channels_first: bool) -> Labelled:
    """Return images (n, H, W, C) and labels (n,), n >= 1. Raises DataError, naming file and array."""
    images, labels = _load(source, images_name), _load(source, labels_name)
    where, is_number = f"{source}: {images_name}", images.dtype.kind in "uif"
    if images.ndim not in {3, 4} or not is_number or not images.size:
        axes = "(images, height, width) or (images, height, width, channels)"
        raise DataError(f"{where} must be numbers {axes} and not empty, not {images.dtype} {images.shape}")
    if images.ndim == 3:
        images = images[..., np.newaxis]
    elif channels_first:
        images = np.moveaxis(images, 1, 3)
    _, height, width, channels = images.shape
    if min(height, width) <= 4 < channels:
        size, other = f"{height} x {width} pixels of {channels} channels", str(not channels_first).lower()
        raise DataError(f"{where}: {size}; set channels_first = {other} if these are other axes")
    if not -MAX_VALUE <= images.min() <= images.max() <= MAX_VALUE:
        raise DataError(f"{where}: has values that are not finite, or not in float32")
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    return images, class_numbers(f"{source}: {labels_name}", labels, len(images))
