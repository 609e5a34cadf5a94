"""Facts about the bundled digits."""

import numpy as np
import pytest

from hpcdl.data.digits import digits


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
