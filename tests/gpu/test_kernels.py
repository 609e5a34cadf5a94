"""Kernels beyond the contract: many blocks, unaligned addresses, 16 bits."""

import numpy as np
import pytest
from gpu.processor import GXX, Processor, narrow, wide

from hpcdl.nn import geometry
from hpcdl.nn.backend import backend
from hpcdl.nn.geometry import master, storage_dtype
from hpcdl.nn.kernels.cupy.device import Grid, grid_over, grid_over_rows
from hpcdl.nn.kernels.cupy.elementwise import channel_sum
from hpcdl.nn.kernels.cupy.gpu import backend_on

pytestmark = pytest.mark.skipif(not GXX, reason="needs g++")

DTYPES = ["float32", "float64", "bfloat16", "float16"]

TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.02, "float16": 0.002}
"""Of results of size 1: a few units in the last place."""


@pytest.fixture(scope="module")
def device():
    return Processor()


@pytest.fixture(scope="module")
def kernels(device):
    return backend_on(device)


@pytest.fixture(scope="module")
def reference():
    return backend("numpy")


def draw(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def both(values, dtype):
    """The same numbers for the kernel and, in float64, for numpy's."""
    stored = narrow(values, dtype)
    return stored, wide(stored, dtype).astype("float64")


def close(found, expected, dtype):
    scale = np.abs(expected).max(initial=1)
    np.testing.assert_allclose(wide(found, dtype) / scale, expected / scale, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("rows", [0, 1, 31, 33, 40_000])
@pytest.mark.parametrize("channels", [1, 3, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_channel_sums_of_many_rows(rows, channels, dtype, device):
    x, exact = both(1 + draw((rows, channels)), dtype)
    out = np.full(channels, np.nan, master(dtype))
    channel_sum(device, x, dtype, out)
    np.testing.assert_allclose(out, exact.sum(axis=0), rtol=1e-5 if master(dtype) == "float32" else 1e-12)


@pytest.mark.parametrize("classes", [1, 2, 5, 31, 32, 33, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_of_few_and_many_classes(classes, dtype, kernels, reference):
    logits, exact = both(4 * draw((17, classes)), dtype)
    labels = np.random.default_rng(2).integers(0, classes, 17)
    op, oracle = (
        chosen.cross_entropy(geometry.Blob((classes,), kind))
        for chosen, kind in ((kernels, dtype), (reference, "float64"))
    )
    loss, correct, gradient = op(logits, labels, 0.25)
    expected, right, exact_gradient = oracle(exact, labels, 0.25)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert correct == right
    close(gradient, exact_gradient, dtype)


def test_of_equal_logits_the_first_counts(kernels):
    op = kernels.cross_entropy(geometry.Blob((40,), "float32"))
    logits = np.zeros((3, 40), "float32")
    logits[1, [7, 39, 6]] = 2
    assert op(logits, np.array([0, 6, 1]), 1.0)[1] == 2


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_address_will_do(shift, dtype, device):
    """Vectors are moved 16 bytes at a time where they can be, and else one by one."""
    n = 1003
    stored = narrow(draw(n + shift), dtype)[shift:]
    out = np.empty(n, storage_dtype(dtype))
    device.launch("elementwise", "relu_forward", dtype, grid_over(n), stored, out, n)
    np.testing.assert_array_equal(wide(out, dtype), np.maximum(wide(stored, dtype), 0))


def test_results_do_not_depend_on_the_grid(device):
    for grid in [Grid(1, 1, 1), Grid(3, 32, 1), Grid(2, 4, 8), Grid(100, 256, 1)]:
        y, bias = draw((37, 12)).astype("float32"), draw(12, 1).astype("float32")
        expected = np.maximum(y + bias, 0)
        device.launch("elementwise", "bias_relu", "float32", grid, y, bias, 37, 12, 1)
        np.testing.assert_array_equal(y, expected)


def test_grids_fit_a_device():
    for elements in (0, 1, 255, 256, 257, 10**10):
        grid = grid_over(elements)
        assert 1 <= grid.blocks <= 4096
    for rows, channels in ((0, 1), (1, 1), (10**9, 3), (5, 2048), (12_544, 64)):
        grid = grid_over_rows(rows, channels, "bfloat16")
        assert grid.x * grid.y == 256
        assert 1 <= grid.blocks <= 1 << 20


def test_casts_round_to_nearest_even(device):
    values = np.array(
        [1, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-9, 65519, 65520, 1e-8, np.inf, np.nan, -0.0], "float32"
    )
    for dtype in ("bfloat16", "float16"):
        out = np.empty(len(values), storage_dtype(dtype))
        device.launch("cast", "narrow", dtype, grid_over(len(values)), values, out, len(values))
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(wide(out, dtype)[:-2], wide(narrow(values, dtype), dtype)[:-2])
        assert np.isnan(wide(out, dtype)[-2])
        assert np.signbit(wide(out, dtype)[-1])
        back = np.empty(len(values), "float32")
        device.launch("cast", "widen", dtype, grid_over(len(values)), out, back, len(values))
        np.testing.assert_array_equal(back, wide(out, dtype))


def test_philox_is_philox(device):
    """The known answer of Random123 for a counter and a key of zeros."""
    n = 4
    state, mask = np.zeros(3, "uint32"), np.empty(n, "uint8")
    x, y = np.ones(n, "float64"), np.empty(n)
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    for k, word in enumerate(words):
        for ratio, kept in (((word >> 8) / 2**24, 1), (((word >> 8) + 1) / 2**24, 0)):
            device.launch("dropout", "dropout_forward", "float64", grid_over(1), x, y, mask, state, n, ratio)
            assert mask[k] == kept
