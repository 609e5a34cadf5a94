"""Round trips of messages for tests of compressors."""

import numpy as np


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
