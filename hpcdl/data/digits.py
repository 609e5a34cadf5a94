"""UCI handwritten digits, bundled: 1797 images of 8 x 8 pixels, enough for a network to learn."""

from importlib import resources

import numpy as np

from hpcdl.data.parts.dataset import DataError, Dataset
from hpcdl.data.parts.splits import in_memory_dataset

SOURCE = (
    "Optical Recognition of Handwritten Digits (test part), E. Alpaydin and C. Kaynak, 1998, "
    "UCI Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0"
)


def digits() -> Dataset:
    """Digits: (8, 8, 1) images in ten classes, 1437 for training and 360 for testing, 36 of each class.

    The bundled file has the split of ``tests/data/make_digits.py``. Its values are 0 to 16. Source: E. Alpaydin
    and C. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0. Raises DataError if it was not installed.
    """
    file = resources.files("hpcdl.data") / "digits.npz"
    try:
        with file.open("rb") as stream, np.load(stream) as arrays:
            train = arrays["train_images"], arrays["train_labels"].astype(np.int64)
            test = arrays["test_images"], arrays["test_labels"].astype(np.int64)
    except FileNotFoundError as error:
        raise DataError(f"{file}: missing; hpcdl was installed without its data files") from error
    return in_memory_dataset("digits", train, test, classes=10, source=SOURCE)
