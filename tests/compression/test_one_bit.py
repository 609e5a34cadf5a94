"""1-bit SGD against a transcription of its definition in plain numpy."""

import numpy as np
import pytest
from contract.compressors import decoded, encoded, layout

from hpcdl.compression.two_values import OneBit

SHAPES = [(6, 5), (4,), (3, 2, 2, 3), (1,), (2, 600)]


def transcription(vector, columns):
    """Return the quantised vector and the columns' values (Seide et al. 2014, section 3.2)."""
    sent, values = np.empty_like(vector), []
    for column in columns:
        x = vector[column].astype("float64")
        one = x >= 0
        low = x[~one].mean() if (~one).any() else 0.0
        high = x[one].mean() if one.any() else 0.0
        sent[column] = np.where(one, high, low)
        values.append((low, high))
    return sent, values


def columns_of(shapes):
    """Return the slices of all weights of each output of matrices, and of whole vectors."""
    offset = 0
    for shape in shapes:
        length = int(np.prod(shape[1:])) if len(shape) > 1 else shape[0]
        for _ in range(int(np.prod(shape)) // length):
            yield slice(offset, offset + length)
            offset += length


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", [SHAPES, SHAPES[:1], [(1,)], [(3, 1)]])
def test_it_quantises_as_defined(shapes, dtype):
    columns = list(columns_of(shapes))
    size = columns[-1].stop
    vector = np.random.default_rng(size).standard_normal(size).astype(dtype)
    vector[::7] = 0
    encoder, whole = OneBit(layout(shapes, dtype=dtype)), slice(0, size)
    message, kept = encoded(encoder, vector)
    sent, values = transcription(vector, columns)
    np.testing.assert_allclose(decoded(encoder, message, whole, dtype), sent, rtol=1e-6)
    np.testing.assert_allclose(kept, vector - sent, rtol=1e-5, atol=1e-6)
    header = 2 * len(columns) * vector.itemsize
    np.testing.assert_allclose(message[:header].view(dtype).reshape(-1, 2), values, rtol=1e-6)
    np.testing.assert_array_equal(np.unpackbits(message[header:], bitorder="little")[:size], vector < 0)
    assert len(message) == header + -(-size // 8)


def test_a_span_that_cuts_columns_has_values_of_its_own():
    vector = np.arange(-6, 9, dtype="float32")
    encoder, span = OneBit(layout([(4, 5)])), slice(3, 18)
    message, _ = encoded(encoder, vector, span)
    parts = [slice(0, 2), slice(2, 7), slice(7, 12), slice(12, 15)]
    np.testing.assert_array_equal(decoded(encoder, message, span), transcription(vector, parts)[0])
