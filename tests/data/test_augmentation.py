"""Augmentation depends only on key and index, and follows the papers."""

import numpy as np
import pytest

from hpcdl.data.binary_files import pad_to_square
from hpcdl.data.parts.splits import Augmentation, PixelCounts, PixelNormalization, in_memory_dataset

from .conftest import message_of

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 9, 7, 3)).astype(np.uint8)
LABELS = RANDOM.integers(0, 10, 40).astype(np.int64)
EVERY = np.arange(40)
SETTINGS = [{"crop_padding": 2}, {"flip": True}, {"crop": 5}, {"crop": 6, "crop_padding": 3, "flip": True}]


def made(**settings):
    augmentation = Augmentation(**settings)
    train, test = (IMAGES, LABELS), (IMAGES[:5], LABELS[:5])
    return in_memory_dataset("x", train, test, classes=10, source="here", augmentation=augmentation)


def by_hand(images, views, height, width):
    """Return reference results from normalised images, one by one: pad with 0, crop, mirror."""
    pad = views.padding
    cut = []
    for image, top, left, mirrored in zip(images, views.top, views.left, views.mirrored, strict=True):
        window = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))[top : top + height, left : left + width]
        cut.append(window[:, ::-1] if mirrored else window)
    return np.array(cut)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_augmentation_pads_crops_and_mirrors_normalised_images(settings, dtype):
    dataset = made(**settings)
    height, width, _ = dataset.shape
    views = Augmentation(**settings).draw(EVERY, 40, (7, 3), (9, 7, 3))
    got, labels = dataset.train.batch(EVERY, dtype, (7, 3))
    np.testing.assert_array_equal(got, by_hand(made().train.batch(EVERY, dtype)[0], views, height, width))
    assert (got.dtype, got.shape, got.flags.c_contiguous) == (dtype, (40, *dataset.shape), True)
    np.testing.assert_array_equal(labels, LABELS)
    for some in (np.array([39, 0, 17, 17, 5]), EVERY[:0]):  # whatever the rest of the batch is
        np.testing.assert_array_equal(dataset.train.batch(some, dtype, (7, 3))[0], got[some])


def test_random_numbers_are_the_same_on_every_machine():
    views = Augmentation(crop_padding=4, flip=True).draw(np.arange(12), 12, (7, 1), (32, 32, 3))
    assert views.top.tolist() == [5, 3, 8, 5, 6, 8, 4, 0, 8, 1, 2, 0]
    assert views.left.tolist() == [5, 8, 5, 1, 2, 4, 2, 5, 4, 2, 0, 1]
    assert views.mirrored.astype(int).tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1]


def test_places_and_sides_are_uniform_and_independent():
    views = Augmentation(crop_padding=4, flip=True).draw(np.arange(81 * 400), 81 * 400, (0, 0), (32, 32, 3))
    cells = np.bincount(9 * views.top + views.left, minlength=81)
    assert len(cells) == 81
    assert np.abs(cells - 400).max() < 100  # 5 standard deviations
    for place in range(9):
        assert abs(views.mirrored[views.top == place].mean() - 0.5) < 0.05


@pytest.mark.parametrize(
    ("shape", "crop", "top", "left"), [((9, 7), 5, 2, 1), ((8, 8), 5, 1, 1), ((6, 9), 6, 0, 1)]
)
def test_test_images_are_cropped_at_the_centre(shape, crop, top, left):
    images = RANDOM.integers(0, 256, (6, *shape, 3)).astype(np.uint8)
    labels = np.zeros(6, np.int64)

    def of(**settings):
        whole, augmentation = (images, labels), Augmentation(**settings)
        return in_memory_dataset("x", whole, whole, classes=1, source="", augmentation=augmentation)

    whole = of().test.batch(np.arange(6), "float32")[0]
    expected = whole[:, top : top + crop, left : left + crop]
    cut = of(crop=crop, crop_padding=2, flip=True)
    assert cut.shape == (crop, crop, 3)
    np.testing.assert_array_equal(cut.test.batch(np.arange(6), "float32")[0], expected)
    np.testing.assert_array_equal(cut.train.batch(np.arange(6), "float32")[0], expected)  # without a key


def test_settings_out_of_range_are_named():
    for settings, said in [
        ({"crop_padding": -1}, "crop_padding must be a whole number from 0 to 6, for images of 9 x 7, not -1"),
        ({"crop_padding": 7}, "crop_padding must be a whole number from 0 to 6, for images of 9 x 7, not 7"),
        ({"crop_padding": 1.5}, "not 1.5"),
        ({"crop_padding": True}, "not True"),
        ({"crop": 8}, "crop = 8 is larger than the images, 9 x 7"),
        ({"crop": 0}, "crop must be a whole number of at least 1, not 0"),
        ({"crop": "big"}, "crop must be a whole number of at least 1, not 'big'"),
    ]:
        message = message_of(made, **settings)
        assert message.startswith("x: ") and said in message


@pytest.mark.parametrize("shape", [(5, 4, 1), (5, 4, 3), (60, 60, 3), (200, 150, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normalisation_is_the_same_arithmetic_for_every_shape(shape, dtype):
    images = RANDOM.integers(0, 256, (3, *shape)).astype(np.uint8)
    mean, std = RANDOM.uniform(0.2, 0.8, shape[2]), RANDOM.uniform(0.1, 0.5, shape[2])
    scale, shift = (1 / (255 * std)).astype(dtype), (mean / std).astype(dtype)
    got = PixelNormalization(mean, std)(images, dtype)
    np.testing.assert_array_equal(got, images.astype(dtype) * scale - shift)
    np.testing.assert_allclose(got, (images / 255 - mean) / std, atol=1e-5)
    np.testing.assert_array_equal(PixelNormalization(mean, std)(images[:, ::2, 1:], dtype), got[:, ::2, 1:])


def test_counts_of_parts_add_up_and_a_constant_channel_becomes_zero():
    counts, images = PixelCounts(3), IMAGES.copy()
    images[..., 2] = 77
    for part in np.array_split(images, 7):
        counts.add(part)
    found = counts.normalization()
    np.testing.assert_allclose(found.mean, (images / 255).mean(axis=(0, 1, 2)), rtol=1e-13)
    np.testing.assert_allclose(found.std[:2], (images / 255).std(axis=(0, 1, 2))[:2], rtol=1e-13)
    np.testing.assert_allclose(found(images, "float64")[..., 2], 0, atol=1e-12)


def test_padding_to_a_square_puts_black_around():
    padded = pad_to_square("x", IMAGES, 12)
    assert padded.shape == (40, 12, 12, 3)
    np.testing.assert_array_equal(padded[:, 1:10, 2:9], IMAGES)
    assert padded.sum(dtype=np.int64) == IMAGES.sum(dtype=np.int64)
    assert pad_to_square("x", IMAGES, None) is IMAGES
    for side in (8, True, 12.5, "12"):
        message = message_of(pad_to_square, "x", IMAGES, side)
        assert message.startswith("x: pad_to must be a whole number of at least 9, for images of 9 x 7")
