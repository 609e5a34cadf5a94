"""Convert folders of JPEG or PNG to one HDF5 file: ``python -m hpcdl.data.convert SOURCE -o images.h5``.

SOURCE has ImageNet's layout, ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg`` (or ``test``). With ``--labels`` it is
one folder of images, whose labels are in a CSV file with the columns ``file``, ``label`` and perhaps ``split``
(``train`` or ``test``), or in the files' ``names``, up to the first ``_``, ``-`` or ``.``. Classes are numbered in
the order of their sorted names, as in torchvision's ImageFolder; names that are whole numbers, by their values.
Hidden files and folders, links to folders inside a class, and files with other endings are skipped and counted.
:mod:`hpcdl.data.hdf5` describes the result. Needs Pillow: ``pip install 'hpcdl[images]'``.
"""

import argparse
import csv
import os
import re
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
from hpcdl.data.parts.splits import PixelCounts, divided
from hpcdl.exit_codes import message
from hpcdl.extras import missing
from hpcdl.trace.files import atomic_write, check_regular, read_csv

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
    parser.add_argument("--labels", metavar="FILE.csv|names", help="SOURCE is one folder; where its labels are")
    parser.add_argument("--test-share", type=float, metavar="S", help="share of test images, if none are stated")
    parser.add_argument("--size", type=int, default=256, help="side of the images (default: 256)")
    options = parser.parse_args(arguments)
    try:
        write_image_file(**vars(options))
    except (DataError, OSError) as error:
        print(f"hpcdl.data.convert: {message(error)}", file=sys.stderr)
        return 2
    return 0


def write_image_file(
    source: Path, output: Path, *, size: int = 256, labels: str | None = None, test_share: float | None = None
) -> None:
    """Write the images in ``source`` to ``output``; after a crash ``output`` is complete or unchanged.

    Each image is converted to RGB, resized so that its shorter side is ``size``, and cropped to its central
    ``size`` x ``size`` pixels, as by torchvision's Resize and CenterCrop. The order of images within a split is
    random. Transparency is dropped, and such images are counted. ``labels`` and ``test_share`` are the options of
    the program for a flat folder.

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
    if labels is None and test_share is not None:
        raise DataError(f"{source}: --test-share is for one folder of images, with --labels")
    skipped: list[Path] = []
    splits = _list_images(source, skipped) if labels is None else _list_flat(source, labels, test_share, skipped)
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


def _list_flat(
    source: Path, labels: str, test_share: float | None, skipped: list[Path]
) -> dict[str, list[tuple[Path, int]]]:
    """Return the images of each split of a flat folder, with their classes. Raises DataError."""
    if labels == "names":
        images = [str(path.relative_to(source)) for path in _images(source, skipped)]
        rows = [{"file": name, "label": re.split(r"[_.-]", Path(name).name)[0]} for name in images]
    else:
        rows = _rows_of_table(Path(labels))
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        if not row["label"] or not (source / row["file"]).is_file():
            problem = f"{source / row['file']} is missing" if row["label"] else f"{row['file']} has no label"
            raise DataError(f"{labels}: image {number}: {problem}")
        if row.get("split", "train") not in {"train", "test"}:
            raise DataError(f"{labels}: image {number}: split {row['split']!r} is neither train nor test")
        if row["file"] in seen:
            raise DataError(f"{labels}: image {number}: {row['file']} is there twice")
        seen.add(row["file"])
    names = sorted({row["label"] for row in rows})
    names = sorted(names, key=int) if all(map(str.isdecimal, names)) else names
    if not 1 < len(names) < len(rows):
        raise DataError(f"{source}: {len(rows)} images have {len(names)} labels, such as {names[:1]}, by {labels}")
    shown = message(f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}")
    print(f"{len(names)} classes: {shown}", file=sys.stderr)
    listed = [(source / row["file"], names.index(row["label"])) for row in rows]
    if "split" not in rows[0]:
        parts = divided(source, len(rows), "--test-share", test_share)
        return {split: [listed[n] for n in part] for split, part in zip(("train", "test"), parts, strict=True)}
    splits = {
        split: [image for image, row in zip(listed, rows, strict=True) if row["split"] == split]
        for split in ("train", "test")
    }
    if test_share is not None or not all(splits.values()):
        raise DataError(f"{labels}: its column split needs train and test; --test-share is for tables without it")
    return splits


def _rows_of_table(table: Path) -> list[dict[str, str]]:
    """Return file, label and perhaps split of each line of a CSV file. Raises DataError."""
    try:
        head, *rows = [[*map(str.strip, row)] for row in read_csv(table) if row] or [[]]
        if not {"file", "label"} <= {*head}:
            raise ValueError(f"must have the columns file and label, perhaps split, not {', '.join(head)}")  # noqa: TRY301
        if any(len(row) != len(head) for row in rows):
            raise ValueError(f"must have {len(head)} fields in each line, as in the first")  # noqa: TRY301
        return [dict(zip(head, row, strict=True)) for row in rows]
    except (ValueError, csv.Error) as error:
        raise DataError(f"{table}: {error}") from error


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
