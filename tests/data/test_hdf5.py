"""Images in an HDF5 file: read when needed; errors of the file are one line."""

from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from hpcdl.data.hdf5 import SAMPLED, Images, hdf5
from hpcdl.data.parts.splits import Augmentation, in_memory_dataset

from .conftest import everything, message_of

RANDOM = np.random.default_rng(0)
TRAIN = RANDOM.integers(0, 256, (50, 12, 10, 3)).astype(np.uint8), RANDOM.integers(0, 7, 50).astype(np.int64)
TEST = RANDOM.integers(0, 256, (20, 12, 10, 3)).astype(np.uint8), RANDOM.integers(0, 7, 20).astype(np.int64)
DATASETS = ("train/images", "train/labels", "test/images", "test/labels")
CONTENT = dict(zip(DATASETS, (*TRAIN, *TEST), strict=True))


def write(path, attributes=(), layout=None, **changed):
    """Write a file of CONTENT with ``changed`` datasets (``train_images=...``); None omits one."""
    named = {name.replace("_", "/"): value for name, value in changed.items()}
    with h5py.File(path, "w") as file:
        for name, value in {**CONTENT, **named}.items():
            if value is not None:
                file.create_dataset(name, data=value, **((layout or {}) if name.endswith("images") else {}))
        file.attrs.update(dict(attributes))
    return str(path)


def in_memory(**settings):
    return in_memory_dataset("x", TRAIN, TEST, classes=7, source="", **settings)


LAYOUTS = [
    {},
    {"chunks": (1, 12, 10, 3)},
    {"chunks": (16, 5, 10, 2)},
    {"chunks": (3, 12, 10, 3), "compression": "gzip", "shuffle": True},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("settings", [{}, {"crop": 8, "crop_padding": 1, "flip": True}], ids=str)
def test_images_are_those_of_memory_in_the_requested_order(tmp_path, settings, layout):
    found = hdf5(path=write(tmp_path / "a.h5", layout=layout), **settings)
    expected = in_memory(augmentation=Augmentation(**settings))
    assert (found.name, found.shape, found.classes) == ("hdf5", expected.shape, 7)
    assert (len(found.train), len(found.test), found.source) == (50, 20, str(tmp_path / "a.h5"))
    for indices, key in (([3], None), ([49, 0, 17, 17, 3], (1, 0)), ([], None), (list(range(20)), (1, 1))):
        for mine, theirs in ((found.train, expected.train), (found.test, expected.test)):
            chosen = np.array(indices, np.int64) % len(mine)
            got, labels = mine.batch(chosen, "float32", key)
            images, right = theirs.batch(chosen, "float32", key)
            np.testing.assert_array_equal(got, images)
            np.testing.assert_array_equal(labels, right)
    assert labels.dtype == np.int64
    for index in (50, -51):
        with pytest.raises(IndexError):
            found.train.batch(np.array([index]), "float32")


def test_opening_reads_a_sample_and_no_more(tmp_path, monkeypatch):
    """ImageNet's 250 GB are not read to compute a mean."""
    read = []
    plain = Images.__call__
    monkeypatch.setattr(Images, "__call__", lambda self, indices: (read.extend(indices), plain(self, indices))[1])
    many = np.repeat(TRAIN[0], 12, axis=0), np.repeat(TRAIN[1], 12)
    path = write(tmp_path / "a.h5", train_images=many[0], train_labels=many[1])
    found = hdf5(path=path)
    assert SAMPLED < len(read) < 300 < len(found.train)
    images = everything(found.train)[0]
    assert np.abs(images.mean(axis=(0, 1, 2))).max() < 0.05
    read.clear()
    described = {"mean": [0.5, 0.25, 0.75], "std": [0.1, 0.2, 0.3]}
    found = hdf5(path=write(tmp_path / "b.h5", described))
    assert len(read) == 32
    got = everything(found.train)[0]
    np.testing.assert_allclose(got, (TRAIN[0] / 255 - described["mean"]) / described["std"], atol=1e-12)


def test_a_digest_of_a_sample_distinguishes_files(tmp_path):
    other_image = TRAIN[0].copy()
    other_image[0] ^= 1
    other_label = TEST[1].copy()
    other_label[3] ^= 1
    written = (
        {},
        {"layout": {"chunks": (1, 12, 10, 3)}, "train_labels": TRAIN[1].astype(np.uint8)},
        {"train_images": other_image},
        {"test_labels": other_label},
        {"test_images": TEST[0][:-1], "test_labels": TEST[1][:-1]},
    )
    digests = [hdf5(path=write(tmp_path / f"{n}.h5", **changed)).digest for n, changed in enumerate(written)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


def test_threads_may_read_at_once(tmp_path):
    found, expected = hdf5(path=write(tmp_path / "a.h5")), in_memory()
    orders = [np.random.default_rng(seed).permutation(50) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        got = [*pool.map(lambda order: found.train.batch(order, "float32")[0], orders)]
    for order, images in zip(orders, got, strict=True):
        np.testing.assert_array_equal(images, expected.train.batch(order, "float32")[0])


IMAGES, LABELS = TRAIN
WRONG = [
    ({"train_labels": None}, "lacks train/images or train/labels"),
    ({"train_images": IMAGES.astype("f4")}, "train/images must be uint8 (images, height, width, channels)"),
    ({"test_images": TEST[0].astype("i2")}, "and not empty, not int16 (20, 12, 10, 3)"),
    ({"train_labels": LABELS.astype("f4")}, "train/labels must be 50 integers, not float32 (50,)"),
    ({"test_images": TEST[0][:0], "test_labels": TEST[1][:0]}, "test/images must be"),
    ({"test_images": TEST[0][:, :11]}, "test/images are (11, 10, 3), but the training images are (12, 10, 3)"),
    ({"train_labels": LABELS - 1}, "train/labels: label -1 at "),
    ({"attributes": {"mean": [0.5], "std": [0.5]}}, "mean and std must be 3 numbers each from 0 to 1"),
    ({"attributes": {"mean": [0.5] * 3, "std": [0.5, np.nan, 0.5]}}, "mean and std must be 3 numbers"),
]


def test_messages_for_invalid_files(tmp_path):
    for number, (written, said) in enumerate(WRONG):
        path = write(tmp_path / f"{number}.h5", **written)
        message = message_of(hdf5, path=path)
        assert message.startswith(f"{path}: ")
        assert said in message


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({}, "never written: 1 of 1 chunks"),
        ({"chunks": (8, 12, 10, 3)}, "never written: 5 of 7 chunks"),
        ({"external": [("no.raw", 0, IMAGES.size)]}, "its values are in other files"),
        (None, "its values are in other files"),
    ],
)
def test_values_that_hdf5_would_fill_in_are_refused(tmp_path, layout, said):
    """They read as black images. ``layout`` None: a virtual dataset."""
    path = write(tmp_path / "a.h5", train_images=None)
    with h5py.File(path, "a") as file:
        if layout is None:
            file.create_virtual_dataset("train/images", h5py.VirtualLayout(IMAGES.shape, "u1"))
        elif "chunks" in (layout := {"shape": IMAGES.shape, "dtype": "u1", **layout}):
            file.create_dataset("train/images", **layout)[:16] = IMAGES[:16]
        else:
            file.create_dataset("train/images", **layout)
    assert message_of(hdf5, path=path).startswith(f"{path}: train/images: {said}")


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.delenv("HPCDL_DATA", raising=False)
    whole = tmp_path / "whole.h5"
    write(whole)
    text, cut, empty = (tmp_path / name for name in ("text.h5", "cut.h5", "empty.h5"))
    text.write_text("not at all")
    empty.write_bytes(b"")
    cut.write_bytes(whole.read_bytes()[:-100])
    assert message_of(hdf5, path=str(tmp_path / "nothing.h5")) == f"{tmp_path / 'nothing.h5'}: missing"
    for path in (text, empty, cut):
        assert message_of(hdf5, path=str(path)).startswith(f"{path}: cannot be read: not HDF5, or truncated: ")
    assert message_of(hdf5, path=str(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"
    for root in ("", str(tmp_path)):
        monkeypatch.setenv("HPCDL_DATA", root)
        assert message_of(hdf5, path="a\0b") == "a\0b: missing"
        assert message_of(hdf5, path="x" * 5000).endswith("x: cannot be read: File name too long")
    for path in ("", 3):
        assert message_of(hdf5, path=path) == f"hdf5: path must be the name of an HDF5 file, not {path!r}"


def test_message_for_a_damaged_image_names_it(tmp_path):
    """Damaged pixels are never returned."""
    known = {"mean": [0.5] * 3, "std": [0.5] * 3}  # so that no sample of 256 images is read before
    path = write(tmp_path / "a.h5", known, {"chunks": (1, 12, 10, 3), "fletcher32": True})
    found = hdf5(path=path)
    with h5py.File(path, locking=False, rdcc_nbytes=1 << 25) as file:
        place = file["train/images"].id.get_chunk_info_by_coord((17, 0, 0, 0)).byte_offset
    with (tmp_path / "a.h5").open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 20)
    found.train.batch(np.arange(17), "float32")
    with pytest.raises(OSError, match=rf"^{path}: train/images\[17\]: [^\n]+$"):
        found.train.batch(np.array([3, 17]), "float32")
