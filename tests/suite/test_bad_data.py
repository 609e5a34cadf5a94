"""Missing and damaged data, and settings that do not fit them, are errors of one line with the file."""

import math
import struct

import h5py
import numpy as np


def idx(*shape):
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(math.prod(shape))


IMAGES = {"train": (20, 12, 10, 3), "test": (8, 12, 10, 3)}


def image_file(path, **changed):
    """An HDF5 file of black images; ``changed`` datasets (``train_labels=...``), None to leave one out."""
    content = {f"{split}_images": np.zeros(shape, np.uint8) for split, shape in IMAGES.items()}
    content |= {f"{split}_labels": np.arange(shape[0]) % 4 for split, shape in IMAGES.items()}
    with h5py.File(path, "w", locking=False) as file:
        for name, value in {**content, **changed}.items():
            if value is not None:
                file[name.replace("_", "/")] = value
    return str(path)


def test_control_characters_in_a_case_name_are_refused(tmp_path, written, refused):
    path = image_file(tmp_path / "a\x1b[2J.h5")
    message = refused(written(dataset={"name": "hdf5", "path": path}, global_batch=4))
    assert message.startswith("the case 'train-lenet5-hdf5(")
    assert "\x1b" not in message
    assert message.endswith("has characters in its name that cannot be shown")
