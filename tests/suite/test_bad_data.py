"""Missing and damaged data, and settings that do not fit them, are errors of one line with the file."""

import gzip
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
        ({FILES[1]: b"\1\2" + CONTENT[FILES[1]][2:]}, f"{FILES[1]}: not an IDX file of bytes in 1 dimensions"),
        ({FILES[2]: None}, f"{FILES[2]}: missing"),
        ({FILES[3]: idx(3)}, f"{FILES[3]}: 3 labels, but"),
        ({FILES[0]: b""}, f"{FILES[0]}: not an IDX file of bytes in 3 dimensions"),
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


def test_a_truncated_gzip_file_is_refused(tmp_path, monkeypatch, written, refused):
    monkeypatch.setenv("HPCDL_DATA", str(tmp_path))
    for name, content in CONTENT.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content)[:-9])
    assert f"{FILES[0]}.gz: cannot be read: Compressed file ended" in refused(
        written(dataset="mnist", global_batch=4)
    )


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


@pytest.mark.parametrize(
    ("changed", "settings", "message"),
    [
        ({"test_images": None}, {}, "images.h5: lacks test/images or test/labels"),
        ({"train_labels": -np.arange(20)}, {}, "images.h5: train/labels: label -19 at 19 is negative"),
        ({"train_labels": np.zeros(19, int)}, {}, "images.h5: train/labels must be 20 integers"),
        ({"train_images": np.zeros((20, 120), np.uint8)}, {}, "images.h5: train/images must be uint8"),
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


def test_a_truncated_image_file_is_refused(tmp_path, written, refused):
    path = image_file(tmp_path / "images.h5")
    (tmp_path / "images.h5").write_bytes((tmp_path / "images.h5").read_bytes()[:-1000])
    message = refused(written(dataset={"name": "hdf5", "path": path}, global_batch=4))
    assert message.startswith(f"[[case]] 1: dataset: {path}: cannot be read: not HDF5, or truncated: ")


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


def test_records_of_the_wrong_length_are_refused(tmp_path, written, refused):
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(bytes(3074))
    message = refused(written(dataset={"name": "cifar100", "path": str(tmp_path)}))
    assert message == (
        f"[[case]] 1: dataset: {tmp_path / 'train.bin'}: truncated: 50000 images need 153700000 bytes, it has 3074"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pad_to": 27}, "mnist: pad_to must be a whole number of at least 28, for images of 28 x 28, not 27"),
        ({"pad_to": "big"}, "setting 'pad_to' must be int or None, not 'big'"),
        ({"crop_padding": 28}, "mnist: crop_padding must be a whole number from 0 to 27, for images of 28 x 28"),
        ({"pad_to": 32, "crop_padding": 32}, "from 0 to 31, for images of 32 x 32, not 32"),
    ],
)
def test_settings_that_do_not_fit_the_images_are_refused(tmp_path, written, refused, settings, message):
    for name, content in CONTENT.items():
        (tmp_path / name).write_bytes(content)
    found = refused(written(dataset={"name": "mnist", "path": str(tmp_path), **settings}, global_batch=4))
    assert found.startswith("[[case]] 1: dataset: ")
    assert message in found
