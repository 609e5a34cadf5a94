"""Missing and damaged data, and settings that do not fit them, are errors of one line with the file."""

import math
import struct

import h5py
import numpy as np
import pytest

from hpcdl.data.idx import FILES


def idx(*shape):
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(math.prod(shape))


CONTENT = dict(zip(FILES, (idx(4, 28, 28), idx(4), idx(2, 28, 28), idx(2)), strict=True))


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ({FILES[0]: CONTENT[FILES[0]][:-1]}, f"{FILES[0]}: truncated: 4 x 28 x 28 values need 3152 bytes"),
        ({FILES[1]: b"\1\2" + CONTENT[FILES[1]][2:]}, f"{FILES[1]}: not an IDX file: begins with 01 02 08 01"),
        ({FILES[2]: None}, f"{FILES[2]}: missing"),
        ({FILES[3]: idx(3)}, f"{FILES[3]}: 3 labels, but"),
        ({FILES[0]: b""}, f"{FILES[0]}: truncated: 0 bytes"),
        (dict.fromkeys(FILES), "mnist: not found in"),
        (dict.fromkeys(FILES), "set HPCDL_DATA to a folder that holds train-images-idx3-ubyte"),
    ],
)
def test_missing_and_damaged_data_are_refused(tmp_path, monkeypatch, written, refused, damaged, message):
    monkeypatch.setenv("HPCDL_DATA", str(tmp_path))
    for name, content in {**CONTENT, **damaged}.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    found = refused(written(dataset="mnist", global_batch=4))
    assert found.startswith("[[case]] 1: dataset: ")
    assert message in found


IMAGES = {"train": (20, 12, 10, 3), "test": (8, 12, 10, 3)}


def image_file(path, **changed):
    """An HDF5 file of black images; ``changed`` datasets (``train_labels=...``), None to leave one out."""
    content = {f"{split}_images": np.zeros(shape, np.uint8) for split, shape in IMAGES.items()}
    content |= {f"{split}_labels": np.arange(shape[0]) % 4 for split, shape in IMAGES.items()}
    with h5py.File(path, "w", locking=False) as file:
        for name, value in {**content, **changed}.items():
            if value is not None:
                file[name.replace("_", "/")] = value
        file.attrs["classes"] = 4
    return str(path)


@pytest.mark.parametrize(
    ("changed", "settings", "message"),
    [
        (
            {"test_images": None},
            {},
            "images.h5: lacks test/images; it has test/labels, train/images, train/labels",
        ),
        (
            {"train_labels": np.arange(20)},
            {},
            "images.h5: train/labels: label 4 at 4 is out of range: 4",
        ),
        ({"train_labels": np.zeros(19, int)}, {}, "images.h5: train has 20 images and 19 labels"),
        ({"train_images": np.zeros((20, 120), np.uint8)}, {}, "images.h5: train/images must have 4 dimensions"),
        ({}, {"crop": 11}, "images.h5: crop = 11 is larger than the images, 12 x 10"),
        ({}, {"crop": 0}, "images.h5: crop must be a whole number of at least 1, not 0"),
        ({}, {"crop": 2.5}, "setting 'crop' must be int or None, not 2.5"),
        ({}, {"flip": 1}, "setting 'flip' must be bool, not 1"),
        ({}, {"crop_paddin": 1}, "unknown setting 'crop_paddin'; did you mean 'crop_padding'?"),
        ({}, {"path": "nowhere.h5"}, "nowhere.h5: missing"),
        ({}, {"path": ""}, "hdf5: path must be the name of an HDF5 file, not ''"),
    ],
)
def test_bad_image_files_are_refused(tmp_path, written, refused, changed, settings, message):
    path = image_file(tmp_path / "images.h5", **changed)
    found = refused(written(dataset={"name": "hdf5", "path": path, **settings}, global_batch=4))
    assert found.startswith("[[case]] 1: dataset: ")
    assert message in found


def test_a_good_image_file_is_accepted(tmp_path, parsed):
    path = image_file(tmp_path / "images.h5")
    moving = {"crop": 8, "crop_padding": 1, "flip": True}
    (case,) = parsed(dataset={"name": "hdf5", "path": path, **moving}, global_batch=4)
    assert case.fields()["dataset"] == f"hdf5(path={path},crop=8,crop_padding=1,flip=True)"


def test_control_characters_in_a_case_name_are_refused(tmp_path, written, refused):
    path = image_file(tmp_path / "a\x1b[2J.h5")
    message = refused(written(dataset={"name": "hdf5", "path": path}, global_batch=4))
    assert message.startswith("the case 'train-lenet5-hdf5(")
    assert "\x1b" not in message
    assert message.endswith("has characters in its name that cannot be shown")
