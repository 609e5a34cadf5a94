"""Nesterov's rule keeps parameters looked ahead to; less that, they are those of its source."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.optim.adam import Adam
from hpcdl.optim.nesterov import Nesterov
from hpcdl.optim.position import position
from hpcdl.optim.scaled import LossScaling
from hpcdl.optim.sgd import SGD


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_nesterovs_is_where_sutskevers_rule_is(scale):
    """v <- mu v - rate g(x + mu v); x <- x + v, with g(x) = x; behind a loss scale, too."""
    inner = Nesterov(momentum=0.9)
    optimizer = inner if scale == 1 else LossScaling(inner, SimpleNamespace(), scale=scale)
    y, found = np.linspace(-1, 1, 7), np.zeros(7)
    x, v = y.copy(), np.zeros(7)
    for _ in range(5):
        position(optimizer, y, found)
        np.testing.assert_allclose(found, x, rtol=1e-12)
        v = 0.9 * v - 0.1 * (x + 0.9 * v)
        x = x + v
        optimizer.update(y, scale * y, 0.1)
    assert np.abs(y - x).max() > 0.1


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()])
def test_others_look_at_where_they_are(optimizer):
    w, found = np.ones(3), np.zeros(3)
    optimizer.update(w, w, 0.1)
    position(optimizer, w, found)
    np.testing.assert_array_equal(found, w)
