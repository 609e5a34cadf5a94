"""A small encoder and a small selector for tests of exchanges; round trips of messages."""

import numpy as np

from hpcdl.compression.parts.protocol import Compression, Sparse

TRAITS = Compression(both_ways=True)


class Largest:
    """Encoder of the entry of largest magnitude of every eight; messages vary in length, because zeros are left out."""

    def __init__(self, layout):
        self.dtype = layout.dtype
        self.state = {}

    def _most(self, span):
        return -(-(span.stop - span.start) // 8)

    def bound(self, span):
        return self._most(span) * (4 + np.dtype(self.dtype).itemsize)

    def expected(self, span):
        return self.bound(span)

    def chosen(self, vector):
        if not np.isfinite(vector).all():
            raise FloatingPointError("a value that is infinite or not a number")
        places = [begin + int(np.abs(vector[begin : begin + 8]).argmax()) for begin in range(0, len(vector), 8)]
        indices = np.array([place for place in places if vector[place]], np.int32)
        values = vector[indices].copy()
        vector[indices] = 0
        return Sparse(indices, values)

    def encode(self, span, vector, wire, step):
        content = b"".join(one.tobytes() for one in self.chosen(vector))
        wire[: len(content)] = np.frombuffer(content, np.uint8)
        return len(content)

    def decode(self, span, message, into):
        size = np.dtype(self.dtype).itemsize
        if len(message) % (4 + size):
            raise ValueError(f"{len(message)} bytes are no entries")
        count = len(message) // (4 + size)
        indices = np.frombuffer(message[: 4 * count].tobytes(), np.int32)
        into[indices] += np.frombuffer(message[4 * count :].tobytes(), self.dtype)


class Selected:
    """Selector of the entry of largest magnitude of every eight; none of eight zeros."""

    signs = False

    def __init__(self, layout):
        self.state = {}
        self._encoder = Largest(layout)

    def most(self, span):
        return -(-(span.stop - span.start) // 8)

    def expected(self, span):
        return self.most(span)

    def select(self, span, vector, step):
        return self._encoder.chosen(vector)


class Accumulating(Selected):
    """Selector with a residual of its own, such as momentum correction has."""

    def __init__(self, layout):
        super().__init__(layout)
        self.state["accumulated"] = np.zeros(layout.size, layout.dtype)

    def select(self, span, vector, step):
        accumulated = self.state["accumulated"][span]
        accumulated += vector
        return super().select(span, accumulated, step)


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
