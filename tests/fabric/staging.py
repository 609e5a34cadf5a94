"""Copies to and from a device that take their time."""

import numpy as np

from hpcdl.fabric.device.staged_copy import HEADER


class SlowCopies:
    """Copies that are done only after having been asked about a few times; what is read too early is not there.

    ``log`` has what happened, in order.
    """

    def __init__(self, chunk, patience=lambda: 2, log=None):
        self.chunk = chunk
        self.log = [] if log is None else log
        self.borrowed = 0
        self._patience = patience

    def borrow(self):
        self.borrowed += 1
        return tuple(np.full(HEADER + self.chunk, 0xEE, np.uint8) for _ in range(2))

    def give_back(self, slots):
        self.borrowed -= 1

    def to_host(self, piece, words):
        words[:] = 0xDD
        return self._later(lambda: words.__setitem__(slice(None), bytes_of(piece)), "out")

    def to_device(self, words, piece):
        return self._later(lambda: bytes_of(piece).__setitem__(slice(None), words), "in")

    def _later(self, copy, direction):
        self.log.append(f"{direction} begins")
        left, done = self._patience(), False

        def wait():
            nonlocal left, done
            if not done and left <= 0:
                copy()
                done = True
                self.log.append(f"{direction} ends")
            left -= 1
            return done

        return wait


def bytes_of(piece):
    assert len(piece.shape) == 1
    return piece.held.view(np.uint8)
