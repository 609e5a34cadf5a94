"""Selection of a backend; copies of arrays to and from the device."""

import numpy as np
import pytest

from hpcdl.nn.backend import backend


def test_unknown_backend_lists_available_ones():
    with pytest.raises(ValueError, match=r"^backend 'torch' is unknown; available: .*numpy") as caught:
        backend("torch")
    assert "\n" not in str(caught.value)


def test_a_backend_whose_library_is_missing_is_refused(monkeypatch):
    monkeypatch.setattr("hpcdl.nn.kernels.numpy.numpy", _missing)
    with pytest.raises(ValueError, match=r"^backend 'numpy' cannot be used here: No module named 'libgpu'$"):
        backend("numpy")


def _missing():
    raise ModuleNotFoundError("No module named 'libgpu'")


def test_arrays_go_to_the_device_and_back(kernels):
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(kernels.to_host(kernels.asarray(host)), host)
    zeros = kernels.to_host(kernels.zeros(5, "float64"))
    assert zeros.dtype == np.float64
    np.testing.assert_array_equal(zeros, np.zeros(5))
