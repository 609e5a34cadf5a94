"""Images in NumPy's files: values, splits and normalisation; errors name file and array in one line."""

from zipfile import ZipFile

import numpy as np
import pytest

from hpcdl.data.digits import digits
from hpcdl.data.numpy import numpy
from hpcdl.registry import find

from .conftest import everything, message_of

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (30, 6, 5, 3)).astype(np.uint8)
LABELS = RANDOM.integers(0, 7, 30)
NAMES = ("train_images", "train_labels", "test_images", "test_labels")
CONTENT = dict(zip(NAMES, (BYTES[:20], LABELS[:20], BYTES[20:], LABELS[20:]), strict=True))


def saved(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_a_file_of_the_bundled_digits_is_the_bundled_digits(tmp_path):
    """As scikit-learn has them, numbers of 0 to 16, in any dtype and order of the axes."""
    own = digits()
    splits = {name: everything(getattr(own, name)) for name in ("train", "test")}
    for dtype, first in (("uint8", False), ("float64", True), ("int16", False)):
        arrays = {}
        for name, split in (("train", own.train), ("test", own.test)):
            pixels = split.read(np.arange(len(split))).astype(dtype)
            pixels = np.moveaxis(pixels, 3, 1) if first else pixels[..., 0]
            arrays |= {f"{name}_images": pixels, f"{name}_labels": split.labels}
        dataset = find("datasets", "numpy")(path=saved(tmp_path / f"{dtype}.npz", **arrays), channels_first=first)
        assert (dataset.shape, dataset.classes) == ((8, 8, 1), 10)
        for name, (images, labels) in splits.items():
            got, right = everything(getattr(dataset, name))
            np.testing.assert_allclose(got, images, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(right, labels)


@pytest.mark.parametrize("names", [NAMES, ("x_train", "y_train", "x_test", "y_test")])
def test_a_folder_of_npy_files_is_the_npz_file(tmp_path, names, monkeypatch):
    arrays = dict(zip(names, CONTENT.values(), strict=True))
    (tmp_path / "folder").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "folder" / name, array[:, None] if array.ndim == 1 else array)  # labels as MedMNIST's
    (tmp_path / "folder/notes.npy").write_text("no array")
    monkeypatch.setenv("HPCDL_DATA", str(tmp_path))
    settings = {"crop": 4, "crop_padding": 1, "flip": True}
    one, other = numpy(path=saved(tmp_path / "a.npz", **arrays), **settings), numpy(path="folder", **settings)
    assert one.digest == other.digest
    for key in (None, (3, 1)):
        batches = [dataset.train.batch(np.array([7, 0, 7]), "float32", key) for dataset in (one, other)]
        np.testing.assert_array_equal(batches[0][0], batches[1][0])
        np.testing.assert_array_equal(batches[0][1], LABELS[[7, 0, 7]])


def test_floats_are_augmented_and_normalised_as_bytes_are(tmp_path):
    floats = {name: array / 255 if array.ndim == 4 else array for name, array in CONTENT.items()}
    paths = saved(tmp_path / "a.npz", **CONTENT), saved(tmp_path / "b.npz", **floats)
    splits = [numpy(path=path, crop_padding=2, flip=True).train for path in paths]
    images = [everything(split, key=(1, 1))[0] for split in splits]
    np.testing.assert_allclose(*images, atol=1e-9)


def test_images_without_a_split_are_divided_as_told(tmp_path):
    path = saved(tmp_path / "a.npz", images=BYTES, labels=LABELS)
    assert "states no test images; test_share=0.2 holds out" in message_of(numpy, path=path)
    dataset = numpy(path=path, test_share=0.2)
    assert (len(dataset.train), len(dataset.test)) == (24, 6)
    assert sorted([*dataset.train.labels, *dataset.test.labels]) == sorted(LABELS)
    assert dataset.digest == numpy(path=path, test_share=0.2).digest
    for share in (0.0, 1.0, 0.001, "half", True):
        assert "leaves no training or no test images, of 30" in message_of(numpy, path=path, test_share=share)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_labels": LABELS[20:] + 0.5}, "test_labels must be 10 integers, not float64 (10,)"),
        ({"train_labels": LABELS}, "train_labels must be 20 integers, not int64 (30,)"),
        ({"train_labels": LABELS[:20] - 9}, "train_labels: label -9 at "),
        ({"train_labels": LABELS[:20].astype(np.uint64) + 2**40}, "is out of range"),
        ({"train_images": np.array(["a"] * 20)}, "train_images must be numbers (images, height, width)"),
        ({"train_images": BYTES[:0]}, "and not empty"),
        ({"train_images": np.full((20, 6, 5, 3), np.nan)}, "train_images: has values that are not finite"),
        ({"train_images": np.full((20, 6, 5, 3), 1.7e308)}, "values that are not finite, or not in float32"),
        ({"test_images": BYTES[20:, :4]}, "test_images are 4 x 5 x 3, but the training images are 6 x 5 x 3"),
        ({"train_images": np.array([{}] * 20, object)}, "train_images: cannot be read: Object arrays"),
        (
            {"train_images": np.zeros((20, 3, 6, 5))},
            "train_images: 3 x 6 pixels of 5 channels; set channels_first = true",
        ),
        ({"test_share": 0.5}, "has test_images, so that test_share must be left out"),
        ({"channels_first": True}, "set channels_first = false"),
    ],
)
def test_wrong_arrays_are_refused_in_one_line(tmp_path, changed, message):
    settings = {name: changed.pop(name) for name in ("test_share", "channels_first") if name in changed}
    path = saved(tmp_path / "a.npz", **{**CONTENT, **changed})
    refused = message_of(numpy, path=path, **settings)
    assert refused.startswith(f"{path}: ")
    assert message in refused


def test_wrong_files_are_refused_in_one_line(tmp_path, monkeypatch):
    whole = (tmp_path / "whole.npz", tmp_path / "cut.npz")
    saved(whole[0], **CONTENT)
    data = bytearray(whole[0].read_bytes())
    data[200:900] = bytes(700)
    whole[1].write_bytes(data)
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "one.npy", BYTES)
    saved(tmp_path / "other.npz", a=BYTES, b=LABELS)
    with ZipFile(tmp_path / "unfinished.npz", "w") as archive:
        for name in NAMES:
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00\x1e\x00{'descr': '|u1', 'shape': (2, ")
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((1000, 64, 64), np.uint8), labels=LABELS)
    monkeypatch.setattr("hpcdl.data.numpy.MAX_DATA", 100_000)
    for path, message in (
        ("absent.npz", "missing"),
        ("one.npy", "neither an .npz file nor a folder of .npy files"),
        ("other.npz", "has a, b, but needs train_images, train_labels, test_images, test_labels; or x_train"),
        ("empty", "has no arrays, but needs"),
        ("cut.npz", "train_images: cannot be read: "),
        ("unfinished.npz", "train_images: cannot be read: "),
        ("bomb.npz", "larger than 100000 bytes when unpacked; make it a folder of .npy files"),
    ):
        refused = message_of(numpy, path=str(tmp_path / path))
        assert refused.startswith(str(tmp_path / path))
        assert message in refused
    assert "path must be the name of an .npz file" in message_of(numpy)
