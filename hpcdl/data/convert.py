"""Convert folders of JPEG or PNG to one HDF5 file: ``python -m hpcdl.data.convert SOURCE -o images.h5``.

SOURCE has ImageNet's layout, ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg`` (or ``test``). Classes are numbered in
the order of their sorted names, as in torchvision's ImageFolder. Hidden files and folders, links to folders inside
a class, and files with other endings are skipped and counted.
:mod:`hpcdl.data.hdf5` describes the result. Needs Pillow: ``pip install 'hpcdl[images]'``.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import DataError, reading
from hpcdl.data.parts.sharding import epoch_order
from hpcdl.data.parts.splits import PixelCounts
from hpcdl.exit_codes import message
from hpcdl.extras import missing
from hpcdl.trace.files import atomic_write, check_regular

ENDINGS: Final = frozenset({".jpg", ".jpeg", ".png"})
"""File name endings of images, in lower case."""
EIGHT_BIT_MODES: Final = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
"""Pillow's modes with at most 8 bits a channel."""
MAX_SIDES: Final = 16
"""Length of the longer side by the shorter one, at most; the ends of a longer one are cut off first."""
_BATCH: Final = 128
"""Images in memory at a time: 25 MB of 256 x 256."""


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
    options = parser.parse_args(arguments)
    try:
        write_image_file(**vars(options))
    except (DataError, OSError) as error:
        print(f"hpcdl.data.convert: {message(error)}", file=sys.stderr)
        return 2
    return 0


def write_image_file(source: Path, output: Path, *, size: int = 256) -> None:
    """Write the images in ``source`` to ``output``; after a crash ``output`` is complete or unchanged.

    Each image is converted to RGB, resized so that its shorter side is ``size``, and cropped to its central
    ``size`` x ``size`` pixels, as by torchvision's Resize and CenterCrop. The order of images within a split is
    random. Transparency is dropped, and such images are counted.

    Raises DataError, one line that names the file or folder, for an image that is damaged, of another format,
    animated or of more than 8 bits a channel; for a missing, empty or unreadable folder, an invalid setting, a
    full disk, and without Pillow; OSError if ``output`` cannot be written.
    """
    import h5py

    if size < 1:
        raise DataError(f"size must be at least 1, not {size}")
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(missing("PIL")) from error
    decode = partial(_decode, Image, size)
    skipped: list[Path] = []
    splits = _list_images(source, skipped)
    if skipped:
        print(f"skipped: {len(skipped)} files, folders or links, such as {message(skipped[0])}", file=sys.stderr)
    needed, free = sum(map(len, splits.values())) * size * size * 3, disk_usage(output.absolute().parent).free
    if needed > free:
        raise DataError(f"{output}: needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free")
    counts, transparent = PixelCounts(3), 0
    opened = partial(h5py.File, mode="w", locking=False)
    with atomic_write(output) as temporary, opened(temporary) as file, ThreadPoolExecutor() as pool:
        for number, (split, listed) in enumerate(splits.items()):
            order = epoch_order(len(listed), number, 0)
            file[f"{split}/labels"] = np.array([listed[index][1] for index in order], np.int64)
            images = file.create_dataset(f"{split}/images", (len(listed), size, size, 3), np.uint8)
            for begin in range(0, len(listed), _BATCH):
                paths = [listed[index][0] for index in order[begin : begin + _BATCH]]
                end = begin + len(paths)
                decoded, alphas = zip(*pool.map(decode, paths), strict=True)
                images[begin:end] = part = np.stack(decoded)
                transparent += sum(alphas)
                if split == "train":
                    counts.add(part)
                if 10 * end // len(listed) > 10 * begin // len(listed):
                    print(f"{split}: {end} of {len(listed)} images", file=sys.stderr)
        normalization = counts.normalization()
        file.attrs.update(mean=normalization.mean, std=normalization.std)
    if transparent:
        print(f"transparency dropped: {transparent} images", file=sys.stderr)


def _list_images(source: Path, skipped: list[Path]) -> dict[str, list[tuple[Path, int]]]:
    held_out = next((source / name for name in ("val", "test") if (source / name).is_dir()), None)
    if held_out is None:
        raise DataError(f"{source}: has neither val nor test")
    train, test = _classes(source / "train", skipped), _classes(held_out, skipped)
    numbers = {name: number for number, name in enumerate(train)}
    for name in test:
        if name not in numbers:
            raise DataError(f"{held_out}/{name}: a class that {source / 'train'} does not have")
    return {
        split: [(path, numbers[name]) for name, paths in classes.items() for path in paths]
        for split, classes in (("train", train), ("test", test))
    }


def _classes(folder: Path, skipped: list[Path]) -> dict[str, list[Path]]:
    with reading(folder):
        entries = sorted(folder.iterdir())
    classes = {entry.name: _images(entry, skipped) for entry in entries if entry.is_dir() and entry.name[0] != "."}
    skipped += [entry for entry in entries if entry.name not in classes]
    if not classes:
        raise DataError(f"{folder}: has no folders, one per class; are its images not sorted yet?")
    for name, images in classes.items():
        if not images:
            raise DataError(f"{folder / name}: has no .jpg, .jpeg or .png")
    return classes


def _images(folder: Path, skipped: list[Path]) -> list[Path]:
    images = []
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        inside = [Path(parent, name) for name in folders]
        others = [path for path in inside if path.name[0] == "." or path.is_symlink()]
        folders[:] = [path.name for path in inside if path not in others]
        paths = [Path(parent, name) for name in files]
        images += (chosen := [path for path in paths if path.name[0] != "." and path.suffix.lower() in ENDINGS])
        skipped += [*others, *(set(paths) - set(chosen))]
    return sorted(images)


def _refuse(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _decode(pillow: Any, size: int, path: Path) -> tuple[NDArray[np.uint8], bool]:
    """Return one image, (size, size, 3), and True if it has transparency. Raises DataError, naming the file."""
    with reading(path):
        check_regular(path)
        with pillow.open(path, formats=("JPEG", "PNG")) as opened:
            if opened.mode not in EIGHT_BIT_MODES:
                raise ValueError(f"its mode is {opened.mode}, but 8 bits a channel would be kept")
            if opened.format == "PNG" and opened.is_animated:
                raise ValueError(f"it has {opened.n_frames} frames, of which one would be kept")
            transparent = opened.has_transparency_data and opened.convert("RGBA").getextrema()[3][0] < 255
            image = opened.convert("RGB")
        shorter = min(image.size)
        image = _middle(image, *(min(side, MAX_SIDES * shorter) for side in image.size))  # it may be very long
        image = image.resize([size * side // shorter for side in image.size], pillow.Resampling.BILINEAR)
        return np.asarray(_middle(image, size, size), np.uint8), transparent


def _middle(image: Any, width: int, height: int) -> Any:
    """Return the central pixels of an image."""
    left, top = (round((side - cut) / 2) for side, cut in zip(image.size, (width, height), strict=True))
    return image.crop((left, top, left + width, top + height))


if __name__ == "__main__":
    sys.exit(main())
