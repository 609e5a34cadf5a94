"""Conversions to 16 bits: equal to numpy's float16, and to the nearest bfloat16, for all numbers of a kind."""

import numpy as np
import pytest

from hpcdl.compression import halves
from hpcdl.compression.halves import BF16, FP16
from hpcdl.compression.parts.protocol import Layout

EDGES = [0, -0.0, 65504, 65519.9, 65520, 1e30, 2.0**-14, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0001, 1e-40, 3e38]


def numbers():
    random = np.random.default_rng(0)
    drawn = random.standard_normal(50_000) * 10.0 ** random.integers(-12, 8, 50_000)
    ties = np.arange(0, 1 << 16, dtype=np.uint32) << 16 | 0x8000
    ties = ties.view(np.float32)
    tied = ties[np.isfinite(ties) & (np.abs(ties) < 3e38)]
    return np.concatenate([drawn, EDGES, np.negative(EDGES), tied]).astype(np.float32)


def sent(compressor, vector, residual=None):
    rounds = compressor.rounds(slice(0, len(vector)), vector, residual, 0)
    found = next(rounds).copy()
    assert next(rounds, None) is None
    return found


def test_float16_is_numpys_and_large_numbers_are_the_largest():
    x = numbers()
    vector, residual = x.copy(), np.empty_like(x)
    found = sent(FP16(Layout(size=len(x))), vector, residual)
    expected = np.clip(x, -65504, 65504).astype(np.float16)
    assert (found.view(np.uint16) == expected.view(np.uint16)).all()
    assert (vector == expected.astype(np.float32)).all()
    assert (residual == x - vector).all()


def test_bfloat16_is_the_nearest_and_even_on_ties():
    x = numbers()
    vector, residual = x.copy(), np.empty_like(x)
    found = np.asarray(sent(BF16(Layout(size=len(x))), vector, residual)).astype(np.uint32)
    around = [
        (np.clip(found.astype(np.int64) + i, 0, 0xFFFF).astype(np.uint32) << 16).view(np.float32)
        for i in (-1, 0, 1)
    ]
    exact = x.astype(np.float64)
    off = [np.abs(one.astype(np.float64) - exact) for one in around]
    finite = [np.isfinite(one) for one in around]
    assert (off[1] <= np.where(finite[0], off[0], np.inf)).all()
    assert (off[1] <= np.where(finite[2], off[2], np.inf)).all()
    tie = (off[1] == off[0]) | (off[1] == off[2])
    assert tie.any()
    assert not (found[tie & (x != 0)] & 1).any()
    assert (vector == around[1]).all()
    assert (residual == x - vector).all()


def test_bfloat16_adds_in_float32():
    x, y = (np.random.default_rng(seed).integers(-200, 200, 9001) for seed in (1, 2))
    one, other = (halves.zeros(9001, "bfloat16") for _ in range(2))
    for vector, values in ((one, x), (other, y)):
        vector[:] = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    one += other
    total = (np.asarray(one).astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(total - (x + y)) <= np.abs(x + y) * 2.0**-8).all()
    assert (total == x + y)[np.abs(x + y) <= 256].all()


def test_float16_adds_as_numpy_and_infinity_stays():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    other = np.random.default_rng(1).permutation(every)
    with np.errstate(all="ignore"):
        expected = every + other
    found = halves.zeros(len(every), "float16")
    found[:] = every
    found += other
    finite = np.isfinite(expected)
    assert (found[finite].view(np.uint16) == expected[finite].view(np.uint16)).all()
    assert not np.isfinite(found[~finite]).any()
    assert (np.isfinite(every) & np.isfinite(other) & ~finite).any()


def test_a_sum_that_overflows_is_refused():
    for compressor, largest in [(FP16, np.float16(65504)), (BF16, np.uint16(0x7F7F))]:
        rounds = compressor(Layout(size=3)).rounds(slice(0, 3), np.ones(3, np.float32), None, 0)
        vector = next(rounds)
        vector[1] = largest
        vector += vector.copy()
        with pytest.raises(FloatingPointError, match="the sum exceeds"):
            next(rounds)
