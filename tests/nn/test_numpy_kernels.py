"""What is particular to the numpy kernels: chunks, and memory that is kept."""

import numpy as np
import pytest

from hpcdl.nn.backend import backend
from hpcdl.nn.geometry import ConvolutionGeometry
from hpcdl.nn.kernels.numpy import im2col
from hpcdl.nn.layers.pooling import MaxPooling
from hpcdl.nn.replica import Replica

GEOMETRY = ConvolutionGeometry((9, 7, 4), (5, 4, 6), (3, 3), (2, 2), (1, 1), 2, "float64")


def run(x, dy, weight, bias):
    op = im2col.Im2col(GEOMETRY)
    dweight, dbias = np.full_like(weight, np.nan), np.full_like(bias, np.nan)
    y = op.forward(x, weight, bias)
    dx = op.backward(dy, weight, dweight, dbias, wanted=True)
    return y, dx, dweight, dbias


@pytest.mark.parametrize("rows", [1, 4, 7, 8, 19, 20, 21, 45, 60, 1000])
def test_chunks_of_any_size_give_the_same(rows, monkeypatch):
    """From one row of the 5 x 4 output, over parts of an image, to several images and all three at once."""
    random = np.random.default_rng(1)
    arguments = [random.standard_normal(s) for s in [(3, 9, 7, 4), (3, 5, 4, 6), (6, 3, 3, 2), (6,)]]
    whole = run(*arguments)
    monkeypatch.setattr(im2col, "CHUNK_BYTES", 1)
    monkeypatch.setattr(im2col, "CHUNK_ROWS", rows)
    for ours, expected in zip(run(*arguments), whole, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)


def test_outputs_are_kept_between_steps():
    replica = Replica([MaxPooling("a", 2), MaxPooling("b", 2)], (8, 8, 3), backend=backend("numpy"))
    stage = replica.stages[1]
    x = np.ones((4, 4, 4, 3), np.float32)
    y = stage.forward(x)
    dx = stage.backward(y)
    assert np.shares_memory(stage.forward(x), y)
    assert np.shares_memory(stage.forward(x[:2]), y)
    assert np.shares_memory(stage.backward(y[:2]), dx)
    assert not np.shares_memory(stage.forward(x, train=False), y)


def test_max_pooling_lets_a_nan_through():
    """A diverged network must not look well again behind its pooling."""
    stage = Replica([MaxPooling("p", 2)], (2, 2, 1), backend=backend("numpy")).stages[0]
    for i in range(4):
        x = np.arange(4, dtype=np.float32)
        x[i] = np.nan
        assert np.isnan(stage.forward(x.reshape(1, 2, 2, 1))).all()
