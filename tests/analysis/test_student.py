"""Student's t distribution against scipy's."""

import numpy as np
import pytest
from scipy import stats

from hpcdl.analysis.statistics.differences import beyond, upper

FREEDOM = np.array([1.0, 1.5, 2.0, 4.0, 9.3, 38.0, 1000.0])


@pytest.mark.parametrize("t", [0.0, 0.5, 2.0, 12.0, 40.0])
def test_tail(t):
    assert beyond(np.full(len(FREEDOM), t), FREEDOM) == pytest.approx(stats.t.sf(t, FREEDOM), rel=1e-5, abs=1e-300)


@pytest.mark.parametrize("probability", [0.2, 0.025, 1e-6])
def test_quantile(probability):
    assert upper(probability, FREEDOM) == pytest.approx(stats.t.isf(probability, FREEDOM), rel=1e-4)


def test_unknown_freedom_stays_unknown():
    assert np.isnan(upper(0.1, [np.nan]))
    assert np.isnan(beyond(np.array([1.0]), np.array([np.nan])))
    assert beyond(np.array([np.inf]), np.array([3.0])) == 0
