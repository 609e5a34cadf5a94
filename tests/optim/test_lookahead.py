"""Nesterov's parameters without the look-ahead are those of its source."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.optim.adam import Adam
from hpcdl.optim.nesterov import Nesterov
from hpcdl.optim.parts.loss_scaling import LossScaling
from hpcdl.optim.parts.protocol import without_lookahead
from hpcdl.optim.sgd import SGD


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_nesterov_without_lookahead_is_sutskevers_rule(scale):
    """v <- mu v - rate g(x + mu v); x <- x + v, with g(x) = x; behind a loss scale, too."""
    inner = Nesterov(momentum=0.9)
    optimizer = inner if scale == 1 else LossScaling(inner, SimpleNamespace(parameters=np.zeros(7)), scale=scale)
    y, found = np.linspace(-1, 1, 7), np.zeros(7)
    x, v = y.copy(), np.zeros(7)
    for _ in range(5):
        without_lookahead(optimizer, y, found)
        np.testing.assert_allclose(found, x, rtol=1e-12)
        v = 0.9 * v - 0.1 * (x + 0.9 * v)
        x = x + v
        optimizer.update(y, scale * y, 0.1)
    assert np.abs(y - x).max() > 0.1


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()])
def test_other_rules_have_no_lookahead(optimizer):
    w, found = np.ones(3), np.zeros(3)
    optimizer.update(w, w, 0.1)
    without_lookahead(optimizer, w, found)
    np.testing.assert_array_equal(found, w)
