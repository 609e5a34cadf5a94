"""Create digits.npz: ``python tests/data/make_digits.py FILE``.

It needs scikit-learn, which is not a dependency of hpcdl. The test split is 36 random images of each class, one
fifth of all, drawn with a fixed seed.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np

HELD_OUT_PER_CLASS = 36
SEED = 1998


def main(path: str) -> None:
    """Write the digits to ``path``: images (n, 8, 8, 1) and labels (n,) of two splits, both uint8."""
    source = importlib.import_module("sklearn.datasets").load_digits()
    images = source.images.astype(np.uint8)[..., np.newaxis]
    labels = source.target.astype(np.uint8)
    order = np.random.default_rng(SEED).permutation(len(labels))
    drawn = [order[labels[order] == digit][:HELD_OUT_PER_CLASS] for digit in range(10)]
    test = np.sort(np.concatenate(drawn))
    train = np.setdiff1d(np.arange(len(labels)), test)
    arrays = {"train_images": images[train], "train_labels": labels[train]}
    np.savez_compressed(path, **arrays, test_images=images[test], test_labels=labels[test])


if __name__ == "__main__":
    main(sys.argv[1])
