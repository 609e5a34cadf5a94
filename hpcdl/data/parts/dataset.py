"""Dataset: two splits of labelled images, with their source and digest; search and reading of its files."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcdl.fabric.comm import Array
from hpcdl.trace.files import MAX_DATA, read_bytes

MAX_CLASSES: Final = 1 << 20


class DataError(Exception):
    """A dataset is missing or damaged, or its settings are invalid; one line."""


class MissingDatasetError(DataError):
    """This machine has none of the files of a dataset."""


Labelled: TypeAlias = tuple[Array, NDArray[np.int64]]
"""Images (n, H, W, C) and labels (n,)."""


class Split(Protocol):
    """Training or test split of a dataset."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class of every image, (images,), from 0 to classes - 1."""

    def __len__(self) -> int: ...

    def batch(self, indices: NDArray[np.int64], dtype: str, key: tuple[int, ...] | None = None) -> Labelled:
        """Return the images and labels at ``indices`` (n,), in that order, as new arrays; n may be 0.

        Images are (n, H, W, C), C-contiguous, of the floating ``dtype``, normalised to mean 0 and standard
        deviation 1 per channel over the training split; labels are (n,). Thread-safe. ``key``, non-negative
        numbers such as seed and epoch, requests augmented images, each changed by the key and its index only.

        Raises IndexError for an index out of range, OSError for an image that can no longer be read.
        """


@dataclass(frozen=True)
class Dataset:
    """Training and test split with their description; also a validation split, where a case holds one out."""

    name: str
    train: Split
    test: Split
    shape: tuple[int, int, int]
    """Height, width, channels of one image."""
    classes: int
    source: str
    """Origin of the images: files, or a citation."""
    digest: str
    """SHA-256, hexadecimal, of the content; equal digests mean equal images and labels in equal order."""
    validation: Split | None = None
    """Images that training does not see and that choices may depend on."""

    @property
    def watched(self) -> Split:
        """Split of the evaluations during training: the validation split, or the test split if there is none."""
        return self.validation or self.test


def content_digest(*arrays: Array) -> str:
    """Return the SHA-256, hexadecimal, of dtypes, shapes and values of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        dtype = array.dtype.newbyteorder("<")
        digest.update(f"{dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array, dtype=dtype).data)
    return digest.hexdigest()


def find_files(
    name: str,
    path: str,
    files: Sequence[str],
    *,
    subfolders: Sequence[str],
    installed: Sequence[Path] = (),
    hint: str,
) -> tuple[Path, dict[str, Path]]:
    """Return the folder of the dataset ``name``, and the path of each of ``files`` in it.

    The folder is the first that contains any of the files: only ``path`` if it is not empty; otherwise
    ``subfolders`` of $HPCDL_DATA, $HPCDL_DATA itself, and ``installed``. A file may be plain or end in .gz; the
    plain one has priority.

    Raises MissingDatasetError, with the searched folders and the ``hint``; DataError if the folder lacks a file.
    """
    root = data_root()
    searched = [*(Path(root) / name for name in subfolders), Path(root)] if root else []
    folders = [Path(path)] if path else [*searched, *installed]
    for folder in folders:
        pairs = ((file, folder / f"{file}{ending}") for file in files for ending in (".gz", ""))
        with reading(folder):
            present = {file: file_path for file, file_path in pairs if file_path.exists()}
        for file in files if present else ():
            if file not in present:
                raise DataError(f"{folder / file}: missing, also with .gz, although other files of {name} exist")
        if present:
            return folder, present
    where = ", ".join(map(str, folders)) or "HPCDL_DATA, which is not set"
    raise MissingDatasetError(f"{name}: not found in {where}; {hint}")


@contextmanager
def reading(place: object) -> Iterator[None]:
    """Context manager: an error of the body, which reads files, becomes a DataError that begins with ``place``."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{place}: missing") from error
    except Exception as error:  # libraries raise many types for damaged files, even SyntaxError
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{place}: cannot be read: {reason}") from error


def content(path: Path) -> bytes:
    """Return the contents of a file, unpacked if its name ends in .gz. Raises DataError, naming the file."""
    with reading(path):
        return read_bytes(path, MAX_DATA)


def check_labels(path: Path, labels: NDArray[np.uint8], classes: int, kind: str = "label") -> None:
    """Raise DataError, naming the file ``path``, unless all of ``labels`` (n,), n >= 1, are below ``classes``."""
    worst = int(labels.argmax())
    if labels[worst] >= classes:
        raise DataError(f"{path}: {kind} {labels[worst]} at {worst} is out of range: {classes} classes")


def class_numbers(where: str, labels: Array, images: int) -> NDArray[np.int64]:
    """Return the classes of ``images`` images. Raises DataError, beginning with ``where``, for other labels."""
    if labels.dtype.kind not in "iu" or labels.shape != (images,):
        raise DataError(f"{where} must be {images} integers, not {labels.dtype} {labels.shape}")
    for at in (int(labels.argmin()), int(labels.argmax())):
        if not 0 <= labels[at] < MAX_CLASSES:
            raise DataError(f"{where}: label {labels[at]} at {at} is out of range, 0 to {MAX_CLASSES - 1}")
    return labels.astype(np.int64)


def is_whole(value: object, least: int) -> bool:
    """Return True if a setting is a whole number of at least ``least``; suites may hold true or 0.5."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def data_root() -> str:
    """Return the value of HPCDL_DATA, empty if not set. Raises DataError if it is not valid text."""
    root = os.environ.get("HPCDL_DATA", "")
    try:
        root.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"HPCDL_DATA: {root!a}: not text in this locale's encoding") from None
    return root


def found_file(path: Path) -> Path:
    """Return the path in HPCDL_DATA of a file that does not exist at ``path`` but there; otherwise ``path``."""
    root = data_root()
    with reading(path):
        return Path(root) / path if root and not path.exists() and (Path(root) / path).exists() else path
