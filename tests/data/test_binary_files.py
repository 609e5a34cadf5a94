"""IDX files and CIFAR's binary files: valid ones are read, each kind of damage has its own message."""

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest

from hpcdl.data import binary_files
from hpcdl.data.binary_files import DEBIAN, FILES, cifar10, cifar100, fashion_mnist, mnist, read_idx

from .conftest import everything, message_of, write


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_four(folder, suffix="", train=30, test=10, seed=0):
    rng = np.random.default_rng(seed)
    sizes = ((256, (train, 5, 4)), (10, train), (256, (test, 5, 4)), (10, test))
    arrays = [rng.integers(0, most, shape).astype(np.uint8) for most, shape in sizes]
    for file, array in zip(FILES, arrays, strict=True):
        write(folder / (file + suffix), idx_bytes(array))
    return arrays


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 5), (0, 4)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_round_trip(tmp_path, shape, suffix):
    array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    got = read_idx(write(tmp_path / f"some-idx{suffix}", idx_bytes(array)), len(shape))
    np.testing.assert_array_equal(got, array)


GOOD = idx_bytes(np.arange(24, dtype=np.uint8).reshape(4, 3, 2))

DAMAGED = {
    b"": "not an IDX file of bytes in 3 dimensions",
    GOOD[:10]: "not an IDX file",
    GOOD[:-1]: "truncated: 4 x 3 x 2 values need 40 bytes, it has 39",
    GOOD + b"\0": "too long: 4 x 3 x 2 values need 40 bytes, it has 41",
    GOOD[:4] + b"\xff" * 12 + GOOD[16:]: "truncated: 4294967295 x ",
    b"\1" + GOOD[1:]: "not an IDX file",  # magic number
    b"\0\0\x08\1" + GOOD[4:]: "not an IDX file",  # dimensions
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_message_for_damage_names_the_file(tmp_path, suffix):
    for content, message in DAMAGED.items():
        path = write(tmp_path / f"train{suffix}", content)
        assert message_of(read_idx, path, 3).startswith(f"{path}: {message}")


def test_missing_and_damaged_gzip(tmp_path):
    for name in ("nothing", "nothing.gz"):
        assert message_of(read_idx, tmp_path / name, 3) == f"{tmp_path / name}: missing"
    path, packed = tmp_path / "x.gz", gzip.compress(np.random.default_rng(0).bytes(5000))
    cases = {
        GOOD: "Not a gzipped file",
        packed[:-9]: "Compressed file ended",
        packed[:5]: "Compressed file ended",
        packed[:-8] + b"\0\0\0\0" + packed[-4:]: "CRC check failed",
        packed[:10] + b"\xff" * 40 + packed[50:]: "Error -3 while decompressing",
        packed + b"rubbish": "Not a gzipped file",
    }
    for content, message in cases.items():
        path.write_bytes(content)
        assert message_of(read_idx, path, 3).startswith(f"{path}: cannot be read: {message}")


def test_images_and_labels_must_belong_together(tmp_path):
    def message(images, labels):
        one = write(tmp_path / "images", idx_bytes(images))
        two = write(tmp_path / "labels", idx_bytes(labels))
        return message_of(binary_files.read_labelled_images, one, two)

    images, labels = np.zeros((6, 3, 2), np.uint8), np.arange(6, dtype=np.uint8)
    assert message(images, labels[:5]).endswith(f"labels: 5 labels, but {tmp_path / 'images'} has 6 images")
    wrong = np.array([0, 1, 2, 3, 10, 5], np.uint8)
    assert "labels: label 10 at 4 is out of range: 10 classes" in message(images, wrong)
    assert "images: no images" in message(images[:0], labels[:0])
    assert "images: no images" in message(images[:, :0], labels)


@pytest.fixture
def nowhere(monkeypatch):
    monkeypatch.delenv("HPCDL_DATA", raising=False)
    monkeypatch.setattr("hpcdl.data.binary_files.DEBIAN", DEBIAN / "nowhere")


def test_four_files_are_a_dataset(tmp_path, nowhere):
    images, labels, test_images, test_labels = write_four(tmp_path)
    found = mnist(path=str(tmp_path))
    assert (found.name, found.shape, found.classes, found.source) == ("mnist", (5, 4, 1), 10, str(tmp_path))
    assert (len(found.train), len(found.test)) == (30, 10)
    np.testing.assert_array_equal(found.train.labels, labels)
    np.testing.assert_array_equal(found.test.labels, test_labels)
    scale = images / 255
    wanted = (test_images[..., None] / 255 - scale.mean()) / scale.std()
    np.testing.assert_allclose(everything(found.test)[0], wanted, rtol=1e-12, atol=1e-14)


def test_digest_is_of_the_content_not_of_the_files(tmp_path, nowhere):
    write_four(tmp_path / "a")
    write_four(tmp_path / "b", ".gz")
    write_four(tmp_path / "c", seed=1)
    a, b, c = (mnist(path=str(tmp_path / name)).digest for name in "abc")
    assert a == b != c


def test_order_of_search(tmp_path, nowhere, monkeypatch):
    root, package = tmp_path / "data", tmp_path / "package"
    monkeypatch.setattr("hpcdl.data.binary_files.DEBIAN", package)
    monkeypatch.setenv("HPCDL_DATA", str(root))
    for folder in (package, root, root / "fashion_mnist", tmp_path / "explicit"):
        write_four(folder)
        settings = {"path": str(folder)} if folder.name == "explicit" else {}
        assert fashion_mnist(**settings).source == str(folder)
    assert fashion_mnist().source == str(root / "fashion_mnist")
    assert mnist().source == str(root)


def test_message_for_a_missing_dataset_names_folders_and_its_source(tmp_path, nowhere, monkeypatch):
    text = message_of(fashion_mnist)
    assert text.startswith(f"fashion_mnist: not found in {DEBIAN / 'nowhere'}; ")
    assert "apt-get install dataset-fashion-mnist" in text
    assert "set HPCDL_DATA to a folder that holds train-images-idx3-ubyte[.gz]" in text
    assert message_of(mnist).startswith("mnist: not found in HPCDL_DATA, which is not set; set HPCDL_DATA")
    monkeypatch.setenv("HPCDL_DATA", str(tmp_path))
    assert f"not found in {tmp_path / 'mnist'}, {tmp_path}; " in message_of(mnist)


def test_test_images_of_another_shape(tmp_path, nowhere):
    write_four(tmp_path)
    write(tmp_path / FILES[2], idx_bytes(np.zeros((10, 4, 4), np.uint8)))
    says = f"{tmp_path / FILES[2]}: images of 4 x 4, but the training images are 5 x 4"
    assert message_of(mnist, path=str(tmp_path)) == says


@pytest.mark.slow
def test_debians_fashion_mnist():
    if not DEBIAN.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    found = fashion_mnist(path=str(DEBIAN))
    assert (found.shape, found.classes, len(found.train), len(found.test)) == ((28, 28, 1), 10, 60000, 10000)
    assert (np.bincount(found.train.labels) == 6000).all()
    assert (np.bincount(found.test.labels) == 1000).all()
    assert found.train.labels[:5].tolist() == [9, 0, 0, 3, 0]
    assert found.digest == "e82adc0c97c6273e3db09f058ebe2cde03fe9e1df16f9d9054d558032e2a0f39"
    images = everything(found.train, "float32")[0]
    assert abs(images.mean(dtype="float64")) < 1e-6
    assert abs(images.std(dtype="float64") - 1) < 1e-6
    assert images.min() == pytest.approx(-0.2860 / 0.3530, abs=1e-3)  # the usual constants


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


def test_message_for_missing_files_says_where_to_get_them(tmp_path, monkeypatch):
    assert message_of(cifar10).startswith("cifar10: not found in HPCDL_DATA, which is not set; get the binary")
    monkeypatch.setenv("HPCDL_DATA", str(tmp_path))
    text = message_of(cifar100)
    assert f"cifar100: not found in {tmp_path / 'cifar100'}, {tmp_path / 'cifar-100-binary'}, {tmp_path}; " in text
    assert "holds train.bin, test.bin" in text
    written(tmp_path, *TEN)
    (tmp_path / "data_batch_2.bin").unlink()
    assert message_of(cifar10).startswith(f"{tmp_path / 'data_batch_2.bin'}: missing")


def test_message_for_damaged_records_names_the_file(tmp_path):
    written(tmp_path, *TEN)
    path = tmp_path / "data_batch_2.bin"
    content = path.read_bytes()
    for damaged, said in {
        content[:-1]: "truncated: 20 images need 61460 bytes, it has 61459",
        content[:-3073]: "truncated: 20 images need 61460 bytes, it has 58387",
        b"": "truncated: 20 images need 61460 bytes, it has 0",
        content + b"\0": "too long: 20 images need 61460 bytes, it has 61461",
        b"\x0a" + content[1:]: "label 10 at 0 is out of range: 10 classes",
    }.items():
        path.write_bytes(damaged)
        assert message_of(cifar10, path=str(tmp_path)) == f"{path}: {said}"


def test_labels_are_the_fine_ones_and_both_are_checked(tmp_path):
    files = written(tmp_path, *HUNDRED)
    found = cifar100(path=str(tmp_path))
    assert (found.name, found.shape, found.classes) == ("cifar100", (32, 32, 3), 100)
    np.testing.assert_array_equal(found.train.labels, files["train.bin"][:, 1])
    np.testing.assert_array_equal(found.test.labels, files["test.bin"][:, 1])
    for place, said in enumerate(("coarse label 20 at 2 is out of range: 20", "fine label 100 at 2 is out")):
        array = written(tmp_path, *HUNDRED)["test.bin"]
        array[2, place] = (20, 100)[place]
        (tmp_path / "test.bin").write_bytes(array.tobytes())
        assert message_of(cifar100, path=str(tmp_path)).startswith(f"{tmp_path / 'test.bin'}: {said}")
