"""Iteration over blocks: every element once, in order, in place."""

import numpy as np
import pytest

from hpcdl.optim.parts import per_tensor as module
from hpcdl.optim.parts.per_tensor import blocks


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("scratch", [0, 1, 2])
def test_every_element_is_visited_once_in_order(n, scratch, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 16)
    first, second = np.arange(n, dtype="float32"), np.arange(n, dtype="float64")
    seen = []
    for piece in blocks(first, second, scratch=scratch):
        assert len(piece) == 2 + scratch
        assert {len(part) for part in piece} == {len(piece[0])}
        assert len(piece[0]) <= 4
        assert all(part.dtype == first.dtype for part in piece[2:])
        seen.extend(piece[0])
        piece[1][:] += 1
    assert seen == list(range(n))
    np.testing.assert_array_equal(second, np.arange(n) + 1)
