"""Conversion of folders of images to one HDF5 file, and messages for bad images."""

import os
import sys

import h5py
import numpy as np
import pytest

from hpcdl.data.convert import main, write_image_file
from hpcdl.data.hdf5 import hdf5
from hpcdl.data.parts.dataset import DataError
from hpcdl.data.parts.splits import in_memory_dataset

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'hpcdl[images]'")

CLASSES = ["ant", "bee", "cat"]
SIZE = 8


def colour(split, label, number):
    """Return a different colour for each image, which identifies it."""
    return ((200 if split == "train" else 100) + label, 20 * label + 3, number)


def write_image(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array, np.uint8)).save(path, **options)


def plain(red, green, blue, height=11, width=9):
    return np.broadcast_to(np.array([red, green, blue], np.uint8), (height, width, 3))


@pytest.fixture
def source(tmp_path):
    for split, count in (("train", 20), ("val", 5)):
        for label, name in enumerate(CLASSES):
            for number in range(count):
                path = tmp_path / "source" / split / name / f"{number:03d}.png"
                write_image(path, plain(*colour(split, label, number)))
    return tmp_path / "source"


def arrays(path):
    with h5py.File(path, locking=False) as file:
        return [file[name][()] for name in ("train/images", "train/labels", "test/images", "test/labels")]


def test_every_image_occurs_once_with_its_label_and_mean_and_deviation_are_exact(source, tmp_path):
    output = tmp_path / "images.h5"
    assert main([str(source), "-o", str(output), "--size", str(SIZE)]) == 0
    train, train_labels, test, test_labels = arrays(output)
    assert (train.shape, test.shape) == ((60, SIZE, SIZE, 3), (15, SIZE, SIZE, 3))
    for split, images, labels in (("train", train, train_labels), ("val", test, test_labels)):
        count = len(labels) // 3
        found = {(tuple(image[0, 0].tolist()), int(label)) for image, label in zip(images, labels, strict=True)}
        assert found == {(colour(split, label, number), label) for label in range(3) for number in range(count)}
        assert (images == images[:, :1, :1]).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images.h5", "source"]
    found = hdf5(path=str(output))
    held = in_memory_dataset("x", (train, train_labels), (test, test_labels), classes=3, source="")
    assert found.classes == 3
    with h5py.File(output, locking=False) as file:
        np.testing.assert_allclose(file.attrs["mean"], (train / 255).mean(axis=(0, 1, 2)), rtol=1e-12)
        np.testing.assert_allclose(file.attrs["std"], (train / 255).std(axis=(0, 1, 2)), rtol=1e-9)
    every = np.arange(60)
    np.testing.assert_array_equal(found.train.batch(every, "float32")[0], held.train.batch(every, "float32")[0])


def test_the_order_is_shuffled_and_always_the_same(source, tmp_path):
    """And an old file stays until the new one is complete."""
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for path in paths:
        write_image_file(source, path, size=SIZE)
    first, again = map(arrays, paths)
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    changes = np.count_nonzero(np.diff(first[1]))
    assert changes > 25  # 2 if sorted by class, 40 on average if shuffled
    old = paths[0].read_bytes()
    (source / "val" / "cat" / "000.png").write_bytes(b"")
    with pytest.raises(DataError):
        write_image_file(source, paths[0], size=SIZE)
    assert paths[0].read_bytes() == old


def test_the_shorter_side_is_resized_and_the_middle_kept(tmp_path):
    """A gradient along the longer side keeps its slope and is cut equally at both ends."""
    ramp = np.linspace(0, 250, 60)
    for split in ("train", "val"):
        write_image(tmp_path / split / "a" / "wide.png", np.repeat(np.tile(ramp, (20, 1))[..., None], 3, axis=2))
        write_image(tmp_path / split / "b" / "high.png", np.repeat(np.tile(ramp, (20, 1)).T[..., None], 3, axis=2))
    write_image_file(tmp_path, tmp_path / "images.h5", size=10)
    images, labels, *_ = arrays(tmp_path / "images.h5")
    wide, high = images[np.argsort(labels)].astype(int)
    np.testing.assert_array_equal(wide, high.swapaxes(0, 1))
    row = wide[5, :, 0]
    assert (wide[..., 0] == row).all()
    assert row[0] + row[-1] == pytest.approx(250, abs=3)
    np.testing.assert_allclose(np.diff(row), 2 * 250 / 59, atol=2)


def test_a_long_image_is_cropped_before_it_is_resized(tmp_path, monkeypatch):
    resize = Image.Image.resize

    def small(image, size, *options):
        assert max(size) <= 160
        return resize(image, size, *options)

    monkeypatch.setattr(Image.Image, "resize", small)
    row = np.where(np.abs(np.arange(16_000) - 8000) < 100, 250, 0)[None, :, None]
    for split in ("train", "val"):
        write_image(tmp_path / split / "a/wide.png", np.repeat(row, 3, axis=2))
        write_image(tmp_path / split / "a/high.png", np.repeat(row.T.reshape(-1, 1, 1), 3, axis=2))
    write_image_file(tmp_path, tmp_path / "images.h5", size=10)
    assert {*np.unique(arrays(tmp_path / "images.h5")[0][:, 5, 5])} == {250}


def test_jpeg_grey_and_transparent_become_colour(tmp_path):
    grey = np.full((9, 9), 77, np.uint8)
    for split in ("train", "test"):
        folder = tmp_path / split / "a"
        write_image(folder / "deep" / "one.JPEG", grey)
        write_image(folder / "two.jpg", plain(77, 77, 77), quality=95)
        write_image(folder / "three.png", np.dstack([plain(77, 77, 77), np.full((11, 9), 255)]))
        (folder / "notes.txt").write_text("no image")
    write_image_file(tmp_path, tmp_path / "images.h5", size=SIZE)
    images, *_ = arrays(tmp_path / "images.h5")
    assert images.shape == (3, SIZE, SIZE, 3)
    assert np.abs(images.astype(int) - 77).max() <= 1


@pytest.fixture
def refused(source, tmp_path, capsys):
    """Return refused(arguments): the message of a conversion that fails without writing a file."""

    def refuse(*arguments, code=2):
        assert main([str(source), "-o", str(tmp_path / "images.h5"), "--size", str(SIZE), *arguments]) == code
        lines = capsys.readouterr().err.splitlines()
        (said,) = (line for line in lines if not line.startswith(("train: ", "test: ")))
        assert not [path for path in tmp_path.iterdir() if "images.h5" in path.name]
        return said.removeprefix("hpcdl.data.convert: ")

    return refuse


def test_damaged_images_are_named(source, refused):
    path = source / "train" / "bee" / "007.png"
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3))
    whole = source / "whole.png"
    write_image(whole, noise)
    data = whole.read_bytes()
    other = path.with_name("\x1b[31m.png")
    other.write_bytes(b"")
    assert refused().startswith(rf"{path.parent}/\x1b[31m.png: cannot be read: ")
    other.unlink()
    for content in (b"", b"<html>not found</html>", data[:1000], data[:200] + b"\xff" * 100 + data[300:]):
        path.write_bytes(content)
        assert refused().startswith(f"{path}: cannot be read: ")


def test_what_is_skipped_or_dropped_is_counted_in_one_line(source, tmp_path, capsys):
    """Among classes a hidden folder would be class 0."""
    write_image(source / "train" / ".ipynb_checkpoints" / "1.png", plain(1, 2, 3))
    write_image(source / "train" / "bee" / ".hidden.png", plain(1, 2, 3))
    write_image(source / "val" / "cat" / "clear.png", np.zeros((9, 9, 4)))
    (source / "val" / "cat" / "link").symlink_to(source / "val" / "bee")
    output = tmp_path / "images.h5"
    assert main([str(source), "-o", str(output), "--size", str(SIZE)]) == 0
    said = capsys.readouterr().err.splitlines()
    first = source / "train" / "bee" / ".hidden.png"
    assert said[0] == f"skipped: 3 files, folders or links, such as {first}"
    assert said[-1] == "transparency dropped: 1 images"
    train, labels, test, _ = arrays(output)
    assert (len(train), len(test), labels.max()) == (60, 16, 2)


def test_images_that_cannot_be_kept_are_refused(source, refused):
    path = source / "train" / "ant" / "000.png"
    frames = {"save_all": True, "append_images": [Image.new("RGB", (9, 11))]}
    for array, kind, options, said in (
        (np.full((9, 9), 40_000, np.uint16), "PNG", {}, "its mode is I;16, but 8 bits a channel would be kept"),
        (plain(1, 2, 3), "GIF", {}, "cannot identify image file"),
        (plain(1, 2, 3), "PNG", frames, "it has 2 frames, of which one would be kept"),
    ):
        Image.fromarray(array).save(path, format=kind, **options)
        assert refused().startswith(f"{path}: cannot be read: {said}")


def test_folders_that_cannot_be_read_are_named(source, refused, monkeypatch):
    plain_scan, denied = os.scandir, source / "val" / "bee"

    def scan(path):
        if str(path) == str(denied):
            raise PermissionError(13, "Permission denied", str(path))
        return plain_scan(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert refused() == f"{denied}: cannot be read: Permission denied"


def test_messages_name_wrong_folders_and_a_wrong_size(source, refused):
    assert refused("--size", "0") == "size must be at least 1, not 0"
    (source / "train" / "dog").mkdir()
    assert refused() == f"{source / 'train' / 'dog'}: has no .jpg, .jpeg or .png"
    (source / "train" / "dog").rmdir()
    write_image(source / "val" / "dog" / "1.png", plain(1, 2, 3))
    assert refused() == f"{source / 'val' / 'dog'}: a class that {source / 'train'} does not have"
    (source / "val").rename(source / "validation")
    assert refused() == f"{source}: has neither val nor test"
    (source / "val").mkdir()
    write_image(source / "val" / "ILSVRC2012_val_00000001.png", plain(1, 2, 3))
    assert refused().startswith(f"{source / 'val'}: has no folders, one per class; are its images not")
    (source / "train").rename(source / "training")
    assert refused() == f"{source / 'train'}: missing"


def test_without_pillow_the_extra_is_named(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert main([str(source), "-o", str(tmp_path / "images.h5")]) == 2
    assert capsys.readouterr().err == "hpcdl.data.convert: Pillow is not installed: pip install 'hpcdl[images]'\n"
