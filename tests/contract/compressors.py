"""Layouts and round trips for tests of compressors."""

import math

import numpy as np

from hpcdl.compression.parts.protocol import Layout
from hpcdl.nn.replica import Tensor


def layout(shapes, **fields):
    """Return the layout of a gradient with tensors of ``shapes``, one after the other."""
    tensors, offset = [], 0
    for number, shape in enumerate(shapes):
        tensors.append(Tensor(f"{number}.weight", offset, shape, decay=False))
        offset += math.prod(shape)
    return Layout(size=offset, tensors=tensors, **fields)


def encoded(encoder, vector, span=None, step=0):
    """Return a message and what is not sent; ``vector`` does not change."""
    span = span or slice(0, len(vector))
    kept, wire = vector.copy(), np.full(encoder.bound(span), 255, np.uint8)
    used = encoder.encode(span, kept, wire, step)
    return wire[:used].copy(), kept


def decoded(encoder, message, span, dtype="float32"):
    """Return the vector that a message stands for."""
    into = np.zeros(span.stop - span.start, dtype)
    encoder.decode(span, message, into)
    return into
