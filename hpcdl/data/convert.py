"""Convert folders of JPEG or PNG to one HDF5 file: ``python -m hpcdl.data.convert SOURCE -o images.h5``.

SOURCE has ImageNet's layout, ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg`` (or ``test``). Classes are numbered in
the order of their sorted names, as in torchvision's ImageFolder. :mod:`hpcdl.data.hdf5` describes the
result. Needs Pillow: ``pip install 'hpcdl[images]'``.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import disk_usage
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.data.parts.dataset import ContentDigest, DataError
from hpcdl.data.parts.sharding import epoch_order
from hpcdl.data.parts.splits import PixelCounts
from hpcdl.trace.files import atomic_write, check_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from hpcdl.data.parts.splits import PixelNormalization

ENDINGS: Final = frozenset({".jpg", ".jpeg", ".png"})
"""File name endings of images, in lower case."""
HELD_OUT: Final = ("val", "test")
"""Folders of test images; the first that exists is used, because ImageNet's ``test`` has no labels."""
OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
_BATCH: Final = 128
"""Images in memory at a time: 25 MB of 256 x 256."""

Listed = list[tuple[Path, int]]
"""Image files and their labels."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert as the command line requests; return the exit code, 2 for input that cannot be converted."""
    parser = argparse.ArgumentParser(
        prog="python -m hpcdl.data.convert", description="Folders of JPEG or PNG to one HDF5 file of images."
    )
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="has train/CLASS/*.jpg and val/CLASS/*.jpg (or test)"
    )
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="IMAGES.h5")
    parser.add_argument("--size", type=int, default=256, help="side of the images (default: 256)")
    parser.add_argument(
        "--test-share",
        type=float,
        metavar="SHARE",
        help="where SOURCE has neither val nor test: hold out this share of each class",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order of the images (default: 0)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="to decode with (default: all cores)")
    options = parser.parse_args(arguments)
    try:
        write_image_file(
            options.source,
            options.output,
            size=options.size,
            test_share=options.test_share,
            seed=options.seed,
            threads=options.threads,
            progress=Progress(),
        )
    except DataError as error:
        print(f"hpcdl.data.convert: {error}", file=sys.stderr)
        return USAGE
    except OSError as error:
        print(f"hpcdl.data.convert: {options.output}: cannot be written: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"hpcdl.data.convert: interrupted; {options.output} was not written", file=sys.stderr)
        return FAILED
    return OK


class Progress:
    """Progress on stderr: one growing line on a terminal, otherwise one line per ten percent."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = self._last = monotonic()
        self._tenths = -1

    def __call__(self, split: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` images of a split are written."""
        now = monotonic()
        tenths = 10 * done // total
        if (now - self._last < 1 if self._terminal else tenths == self._tenths) and done < total:
            return
        self._last, self._tenths = now, tenths
        seconds = f"{now - self._began:.0f} s"
        begin, end = ("\r\x1b[K", "\n" if done == total else "") if self._terminal else ("", "\n")
        print(f"{begin}{split}: {done} of {total} images, {seconds}", end=end, file=sys.stderr, flush=True)


def write_image_file(
    source: Path,
    output: Path,
    *,
    size: int = 256,
    test_share: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] = lambda _split, _done, _total: None,
) -> None:
    """Write the images in ``source`` to ``output``; after a crash ``output`` is complete or unchanged.

    Each image is converted to RGB, resized so that its shorter side is ``size``, and cropped to its central
    ``size`` x ``size`` pixels, as by torchvision's Resize and CenterCrop. The order of images within a split is
    drawn from ``seed``, so that neighbours have different classes. Without a folder val or test, a random
    ``test_share`` of each class becomes the test split. A few hundred images are in memory at a time.

    Raises DataError, one line that names the file or folder, for a damaged image, a missing or empty folder, an
    invalid setting, a full disk, and without Pillow; OSError if ``output`` cannot be written.
    """
    _check(size, test_share, seed, threads)
    _pillow()
    if output.is_dir():
        raise DataError(f"{output}: is a folder, not the name of a file to write")
    names, splits = _list_images(source, test_share, seed)
    splits = {
        split: [listed[index] for index in epoch_order(len(listed), number, seed)]
        for number, (split, listed) in enumerate(splits.items())
    }
    needed, free = sum(map(len, splits.values())) * size * size * 3, disk_usage(output.absolute().parent).free
    if needed > free:
        raise DataError(f"{output}: needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free")
    digest, counts = ContentDigest(), PixelCounts(3)
    with atomic_write(output) as temporary:
        places = _write_layout(temporary, names, splits, size, source)
        # without HDF5, which would crash at exit if the disk were full; a plain write raises OSError
        with temporary.open("r+b") as file, ThreadPoolExecutor(threads, "decode") as pool:
            for split, listed in splits.items():
                labels = np.array([label for _, label in listed], np.int64)
                digest.begin(np.dtype(np.uint8), (len(listed), size, size, 3))
                file.seek(places[split])
                done = 0
                for part in _decoded([path for path, _ in listed], size, pool):
                    file.write(part.data)
                    digest.add(part)
                    if split == "train":
                        counts.add(part)
                    done += len(part)
                    progress(split, done, len(listed))
                digest.begin(labels.dtype, labels.shape)
                digest.add(labels)
        _write_attributes(temporary, counts.normalization(), digest.hexadecimal())


def _write_layout(
    path: Path, names: list[str], splits: dict[str, Listed], size: int, source: Path
) -> dict[str, int]:
    """Write everything but the pixels, with placeholder attributes; return each split's byte offset of images."""
    import h5py

    places = {}
    # in this format, chunks allocated together are contiguous and need no index
    with h5py.File(path, "w", locking=False, libver=("v110", "v110")) as file:
        file["class_names"] = names
        unknown = np.ones(3)
        file.attrs.update(
            classes=len(names), source=str(source), mean=unknown, std=unknown, digest=np.bytes_("-" * 64)
        )
        for split, listed in splits.items():
            file[f"{split}/labels"] = np.array([label for _, label in listed], np.int64)
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_chunk((1, size, size, 3))
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            space = h5py.h5s.create_simple((len(listed), size, size, 3))
            images = h5py.h5d.create(file[split].id, b"images", h5py.h5t.STD_U8LE, space, layout)
            places[split], last = (
                images.get_chunk_info_by_coord((index, 0, 0, 0)).byte_offset for index in (0, len(listed) - 1)
            )
            if last - places[split] != (len(listed) - 1) * size * size * 3:
                raise OSError("this HDF5 library does not allocate chunks contiguously")
    return places


def _write_attributes(path: Path, normalization: PixelNormalization, digest: str) -> None:
    """Replace the placeholder attributes."""
    import h5py

    with h5py.File(path, "r+", locking=False) as file:
        file.attrs.modify("mean", normalization.mean)
        file.attrs.modify("std", normalization.std)
        file.attrs.modify("digest", np.bytes_(digest))


def _check(size: int, test_share: float | None, seed: int, threads: int | None) -> None:
    for name, value, least in (("size", size, 1), ("seed", seed, 0), ("threads", threads, 1)):
        if value is not None and value < least:
            raise DataError(f"{name} must be at least {least}, not {value}")
    if test_share is not None and not 0 < test_share < 1:
        raise DataError(f"test-share must be between 0 and 1, not {test_share:g}")


def _list_images(source: Path, test_share: float | None, seed: int) -> tuple[list[str], dict[str, Listed]]:
    """Return the names of the classes, and the files of each split."""
    train = _classes(source / "train")
    names = list(train)
    held_out = next((source / name for name in HELD_OUT if (source / name).is_dir()), None)
    if held_out is None and test_share is None:
        raise DataError(f"{source}: has neither val nor test; --test-share splits off a part of train")
    if held_out is not None and test_share is not None:
        raise DataError(f"{held_out}: exists, so --test-share cannot be used")
    test = _split_off(train, test_share or 0, seed) if held_out is None else _classes(held_out)
    for name in test:
        if name not in train:
            raise DataError(f"{held_out}/{name}: a class that {source / 'train'} does not have")
    numbers = {name: number for number, name in enumerate(names)}
    splits = {
        split: [(path, numbers[name]) for name, paths in found.items() for path in paths]
        for split, found in (("train", train), ("test", test))
    }
    if not splits["test"]:
        raise DataError(f"{source}: --test-share {test_share:g} selects no image")
    return names, splits


def _classes(folder: Path) -> dict[str, list[Path]]:
    """Return the image files of each class, sorted by name."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
    if not names:
        raise DataError(f"{folder}: has no folders, one per class; are its images not sorted yet?")
    options = {}
    for name in names:
        options[name] = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in ENDINGS)
        if not options[name]:
            raise DataError(f"{folder / name}: has no .jpg, .jpeg or .png")
    return options


def _split_off(train: dict[str, list[Path]], share: float, seed: int) -> dict[str, list[Path]]:
    """Move a random ``share`` of each class from ``train`` to a new split; return it."""
    test = {}
    for number, (name, paths) in enumerate(train.items()):
        order = epoch_order(len(paths), 2 + number, seed)  # 0 and 1 order the images of the splits
        held_out = {paths[index] for index in order[: round(share * len(paths))]}
        if len(held_out) == len(paths):
            raise DataError(f"{paths[0].parent}: --test-share {share:g} leaves no image to train on")
        test[name] = [path for path in paths if path in held_out]
        train[name] = [path for path in paths if path not in held_out]
    return test


def _decoded(paths: Sequence[Path], size: int, pool: ThreadPoolExecutor) -> Iterator[NDArray[np.uint8]]:
    """Yield the images at ``paths`` in their order, (at most 128, size, size, 3) at a time."""
    for begin in range(0, len(paths), _BATCH):
        yield np.stack([*pool.map(lambda path: _decode(path, size), paths[begin : begin + _BATCH])])


def _decode(path: Path, size: int) -> NDArray[np.uint8]:
    """Return one image, (size, size, 3). Raises DataError, naming the file."""
    pillow = _pillow()
    try:
        check_regular(path)
        with pillow.open(path) as opened:
            image = opened.convert("RGB")
        width, height = image.size
        shorter = min(width, height)
        width, height = size * width // shorter, size * height // shorter
        image = image.resize((width, height), pillow.Resampling.BILINEAR)
        left, top = round((width - size) / 2), round((height - size) / 2)
        return np.asarray(image.crop((left, top, left + size, top + size)), np.uint8)
    except pillow.UnidentifiedImageError as error:
        raise DataError(f"{path}: not an image that Pillow can read") from error
    except Exception as error:  # Pillow raises many types for damaged files, even SyntaxError
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: damaged image: {reason}") from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("Pillow is needed to read images: pip install 'hpcdl[images]'") from error
    return Image


if __name__ == "__main__":
    sys.exit(main())
