"""Break-even bandwidths: the closed form, and the search over steps."""

import math

import pytest

from hpcdl.analysis.run.break_even import bandwidth, crossing


@pytest.mark.parametrize(
    "saved, added, expected", [(1e6, 0.01, 1e8), (1e6, 0, math.inf), (0, 0.01, 0), (-1, 0, 0)]
)
def test_below_the_bandwidth_the_saved_bytes_take_longer_than_the_added_work(saved, added, expected):
    assert bandwidth(saved, added) == expected


@pytest.mark.parametrize("low, high", [(1e7, 1e9), (9e7, 1.1e8), (1e8 / 3, 3e8)])
def test_the_search_finds_the_closed_form(low, high):
    saved, added = 1e6, 0.01
    found = crossing(lambda rate: saved / rate - added, low, high)
    assert found == pytest.approx(bandwidth(saved, added), rel=0.01)
