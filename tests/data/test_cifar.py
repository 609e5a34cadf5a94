"""CIFAR's binary files: records of labels and colour planes, and messages for damage."""

from dataclasses import replace

import numpy as np
import pytest

from hpcdl.data import binary_files
from hpcdl.data.binary_files import cifar10, cifar100

from .conftest import everything, message_of, write

RANDOM = np.random.default_rng(0)
SMALL_TEN = {"data_batch_1.bin": 30, "data_batch_2.bin": 20}
SMALL_HUNDRED = {"train.bin": 40}
TEN = {**SMALL_TEN, "test_batch.bin": 10}, 10
HUNDRED = {**SMALL_HUNDRED, "test.bin": 10}, 20, 100
"""Files and numbers of images, and classes of each label."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Use files of a few images instead of 184 MB."""
    monkeypatch.delenv("HPCDL_DATA", raising=False)
    for name, train, test in (("CIFAR_10", SMALL_TEN, "test_batch.bin"), ("CIFAR_100", SMALL_HUNDRED, "test.bin")):
        monkeypatch.setattr(binary_files, name, replace(getattr(binary_files, name), train=train, test={test: 10}))


def records(count, *classes):
    """Return records with random labels below ``classes``."""
    array = RANDOM.integers(0, 256, (count, len(classes) + 3072)).astype(np.uint8)
    for place, limit in enumerate(classes):
        array[:, place] = RANDOM.integers(0, limit, count)
    return array


def written(folder, files, *classes, suffix=""):
    arrays = {name: records(count, *classes) for name, count in files.items()}
    for name, array in arrays.items():
        write(folder / (name + suffix), array.tobytes())
    return arrays


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_planes_become_pixels_and_files_are_concatenated(tmp_path, suffix):
    files = written(tmp_path, *TEN, suffix=suffix)
    found = cifar10(path=str(tmp_path))
    assert (found.name, found.shape, found.classes) == ("cifar10", (32, 32, 3), 10)
    assert (len(found.train), len(found.test), found.source) == (50, 10, str(tmp_path))
    train = np.concatenate([files["data_batch_1.bin"], files["data_batch_2.bin"]])
    np.testing.assert_array_equal(found.train.labels, train[:, 0])
    np.testing.assert_array_equal(found.test.labels, files["test_batch.bin"][:, 0])
    images = everything(found.train)[0]
    for channel in range(3):
        plane = train[:, 1 + 1024 * channel :][:, :1024] / 255
        normal = (plane - plane.mean()) / plane.std()
        for row, column in ((0, 0), (0, 31), (5, 7), (31, 31)):
            np.testing.assert_allclose(images[:, row, column, channel], normal[:, 32 * row + column], rtol=1e-9)


def test_labels_are_the_fine_ones(tmp_path):
    files = written(tmp_path, *HUNDRED)
    found = cifar100(path=str(tmp_path))
    assert (found.name, found.shape, found.classes) == ("cifar100", (32, 32, 3), 100)
    np.testing.assert_array_equal(found.train.labels, files["train.bin"][:, 1])
    np.testing.assert_array_equal(found.test.labels, files["test.bin"][:, 1])


def test_message_for_missing_files_says_where_to_get_them(tmp_path, monkeypatch):
    assert message_of(cifar10).startswith("cifar10: not found in HPCDL_DATA, which is not set; get the binary")
    monkeypatch.setenv("HPCDL_DATA", str(tmp_path))
    text = message_of(cifar100)
    assert f"cifar100: not found in {tmp_path / 'cifar100'}, {tmp_path / 'cifar-100-binary'}, {tmp_path}; " in text
    assert "holds train.bin, test.bin" in text
    written(tmp_path, *TEN)
    (tmp_path / "data_batch_2.bin").unlink()
    assert message_of(cifar10).startswith(f"{tmp_path / 'data_batch_2.bin'}: missing")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content[:-1], "truncated: 20 images need 61460 bytes, it has 61459"),
        (lambda content: content[:-3073], "truncated: 20 images need 61460 bytes, it has 58387"),
        (lambda _content: b"", "truncated: 20 images need 61460 bytes, it has 0"),
        (lambda content: content + b"\0", "too long: 20 images need 61460 bytes, it has 61461"),
        (lambda content: b"\x0a" + content[1:], "label 10 at 0 is out of range: 10 classes"),
    ],
)
def test_message_for_damage_names_the_file(tmp_path, change, said):
    written(tmp_path, *TEN)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(change(path.read_bytes()))
    assert message_of(cifar10, path=str(tmp_path)) == f"{path}: {said}"


def test_both_labels_are_checked(tmp_path):
    for place, said in enumerate(("coarse label 20 at 2 is out of range: 20", "fine label 100 at 2 is out")):
        array = written(tmp_path, *HUNDRED)["test.bin"]
        array[2, place] = (20, 100)[place]
        (tmp_path / "test.bin").write_bytes(array.tobytes())
        assert message_of(cifar100, path=str(tmp_path)).startswith(f"{tmp_path / 'test.bin'}: {said}")
