"""Facts about the bundled digits; synthetic images: shapes, deviations, and that they can be learned."""

import numpy as np
import pytest

from hpcdl.data.digits import digits
from hpcdl.data.synthetic import synthetic

from .conftest import everything, message_of


@pytest.fixture(scope="module")
def bundled():
    return digits()


def test_content_never_changes(bundled):
    assert (bundled.name, bundled.classes, len(bundled.train), len(bundled.test)) == ("digits", 10, 1437, 360)
    assert bundled.digest == "f32e0fb174f1ddc0ffc66f856623b78a654cd0102aebcf7edf00351c03f1df91"
    assert digits().digest == bundled.digest
    assert "Alpaydin" in bundled.source
    assert "CC BY 4.0" in bundled.source


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_batch_is_normalised_contiguous_and_the_callers_own(bundled, dtype):
    images, labels = everything(bundled.train, dtype)
    assert images.dtype == dtype
    assert images.shape == (1437, 8, 8, 1)
    assert images.flags.c_contiguous
    assert abs(images.mean()) < 1e-6
    assert abs(images.std() - 1) < 1e-6
    some, some_labels = bundled.train.batch(np.array([5, 3, 5]), dtype)
    np.testing.assert_array_equal(some, images[[5, 3, 5]])
    np.testing.assert_array_equal(some_labels, labels[[5, 3, 5]])
    some[:] = 0
    some_labels[:] = 0
    np.testing.assert_array_equal(everything(bundled.train, dtype)[0], images)
    np.testing.assert_array_equal(bundled.train.labels, labels)


def test_shape_count_and_classes():
    for shape in [[8, 8, 1], (32, 32, 3), [5, 7, 2], [1, 1, 1]]:
        made = synthetic(shape=shape, classes=7, images=50, test_images=20)
        assert made.shape == tuple(shape)
        images, labels = everything(made.train, "float32")
        assert images.shape == (50, *shape)
        assert images.dtype == np.float32
        assert images.flags.c_contiguous
        assert labels.tolist() == [i % 7 for i in range(50)]
        assert labels.dtype == np.int64
        assert len(made.test) == 20


def test_values_are_centred_with_deviation_one():
    for noise in [0.0, 1.0, 5.0]:
        images = everything(synthetic(shape=[32, 32, 3], classes=50, images=500, noise=noise).train)[0]
        assert abs(images.mean()) < 0.05
        assert abs(images.std() - 1) < 0.05


def test_class_means_of_the_training_split_classify_the_test_split():
    made = synthetic(shape=[16, 16, 3], images=400, test_images=200)
    images, labels = everything(made.train)
    means = np.stack([images[labels == label].mean(axis=0).ravel() for label in range(10)])
    held, wanted = everything(made.test)
    nearest = ((held.reshape(200, 1, -1) - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == wanted).mean() > 0.95


def test_messages_name_invalid_settings():
    for name, values in {
        "shape": ([28, 28], [28, 28, 0], [28, 28.0, 1], [28, "28", 1], "abc", 28),
        "classes": (0, 2.5, True),
        "images": (0, "many", 2**31),
        "test_images": (-1,),
        "seed": (-1,),
        "noise": (-0.5, float("nan"), float("inf"), "loud"),
    }.items():
        for value in values:
            assert message_of(synthetic, **{name: value}).startswith(f"synthetic: {name} must be ")
