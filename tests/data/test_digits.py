"""Facts about the bundled digits, and about splits held in memory."""

import numpy as np
import pytest

from hpcdl.data.digits import digits
from hpcdl.data.parts.splits import in_memory_dataset


@pytest.fixture(scope="module")
def bundled():
    return digits()


def test_counts_and_shape(bundled):
    assert (bundled.name, bundled.shape, bundled.classes) == ("digits", (8, 8, 1), 10)
    assert (len(bundled.train), len(bundled.test)) == (1437, 360)
    together = np.bincount(bundled.train.labels) + np.bincount(bundled.test.labels)
    assert together.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (np.bincount(bundled.test.labels) == 36).all()
    assert bundled.train.labels.dtype == np.int64


def test_content_never_changes(bundled):
    assert bundled.digest == "f32e0fb174f1ddc0ffc66f856623b78a654cd0102aebcf7edf00351c03f1df91"
    assert digits().digest == bundled.digest
    assert "Alpaydin" in bundled.source
    assert "CC BY 4.0" in bundled.source


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_batch_is_normalised_contiguous_and_the_callers_own(bundled, dtype):
    everything, labels = bundled.train.batch(np.arange(1437), dtype)
    assert everything.dtype == dtype
    assert everything.shape == (1437, 8, 8, 1)
    assert everything.flags.c_contiguous
    assert abs(everything.mean()) < 1e-6
    assert abs(everything.std() - 1) < 1e-6
    some, some_labels = bundled.train.batch(np.array([5, 3, 5]), dtype)
    np.testing.assert_array_equal(some, everything[[5, 3, 5]])
    np.testing.assert_array_equal(some_labels, labels[[5, 3, 5]])
    some[:] = 0
    some_labels[:] = 0
    np.testing.assert_array_equal(bundled.train.batch(np.arange(1437), dtype)[0], everything)
    np.testing.assert_array_equal(bundled.train.labels, labels)


def test_channels_are_normalised_separately_and_a_constant_one_becomes_zero():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2500, 3, 2, 3)).astype(np.uint8)
    images[..., 1] //= 4
    images[..., 2] = 77
    labels = np.zeros(2500, np.int64)
    made = in_memory_dataset("x", (images, labels), (images[:5], labels[:5]), classes=1, source="here")
    assert made.shape == (3, 2, 3)
    got = made.train.batch(np.arange(2500), "float64")[0]
    np.testing.assert_allclose(got.mean(axis=(0, 1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(got.std(axis=(0, 1, 2)), [1, 1, 0], atol=1e-12)
    mean, std = (images / 255).mean(axis=(0, 1, 2)), (images / 255).std(axis=(0, 1, 2))
    np.testing.assert_allclose(
        got[..., :2], ((images / 255 - mean) / np.where(std > 1e-9, std, 1))[..., :2], rtol=1e-9, atol=1e-12
    )
