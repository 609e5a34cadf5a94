"""Who computes which portion of a batch, so that each counts once: the coordinator's book."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

HASTE: Final = 2
"""A worker sends what it has gathered before a portion in whose time others could do the rest HASTE times."""


class Portions:
    """The portions of one batch, handed out to workers (Dean et al. 2012, section 4.2).

    Free workers take the next portion. When all are handed out, the one that has been out for longest is handed
    out once more (``backup``), and the first answer counts. A worker adds an accepted portion to what it
    gathers, and nobody else does; it sends when told so: after ``push_every`` portions, and early enough that
    nobody waits for a slow worker that has gathered something and is at a portion that another one does as well.
    """

    def __init__(self, number: int, *, push_every: int, backup: bool) -> None:
        self._number = number
        self._push_every = push_every
        self._backup = backup
        self._waiting = deque(range(number))
        self._out: dict[int, list[int]] = {}
        """Unanswered portions, the one that has been out for longest first, and who computes them."""
        self._losses: dict[int, float] = {}
        self._gathered: dict[int, list[int]] = {}
        self._answers: Counter[int] = Counter()
        self._singly = False

    @property
    def settled(self) -> bool:
        """Whether every portion has been accepted and sent."""
        return len(self._losses) == self._number and not self._gathered

    @property
    def loss(self) -> float:
        """Sum of the accepted losses, in the order of the portions."""
        return sum(self._losses[portion] for portion in sorted(self._losses))

    def hand_out(self, worker: int) -> int | None:
        """Return the portion that a free ``worker`` is to compute, None if there is none for it."""
        if self._waiting:
            portion = self._waiting.popleft()
            self._out[portion] = [worker]
            return portion
        if self._backup:
            for portion, workers in self._out.items():
                if len(workers) == 1 and worker not in workers:
                    workers.append(worker)
                    return portion
        return None

    def answer(self, worker: int, portion: int, loss: float) -> bool:
        """Note that ``worker`` has computed ``portion``; tells whether it counts.

        It does not if another was first, even one that has been lost since: see :meth:`lost`.
        """
        self._answers[worker] += 1
        if worker not in self._out.get(portion, ()):
            return False
        del self._out[portion]
        self._losses[portion] = loss
        self._gathered.setdefault(worker, []).append(portion)
        return True

    def must_push(self, worker: int) -> bool:
        """Whether a free ``worker`` is to send what it has gathered before anything else."""
        gathered = len(self._gathered.get(worker, ()))
        others = self._answers.total() / max(1, self._answers[worker])  # in the time of one of this worker's
        hurry = self._singly or len(self._waiting) <= HASTE * others
        return gathered > 0 and (gathered >= self._push_every or hurry)

    def gathered(self, worker: int) -> list[int]:
        """The accepted portions that ``worker`` has not sent."""
        return self._gathered.get(worker, [])

    def pushed(self, worker: int) -> None:
        """Note that all shards have, or will have, what ``worker`` had gathered."""
        self._gathered.pop(worker, None)

    def lost(self, worker: int) -> None:
        """Hand out again what only ``worker`` had, which is gone.

        Some shards may have got what it was sending. They know each portion that they have counted and leave out
        what comes again, portion by portion: from now on portions are sent one by one.
        """
        self._singly = True
        for portion in self._gathered.pop(worker, ()):
            del self._losses[portion]
            self._waiting.append(portion)
        for portion, workers in list(self._out.items()):
            if worker in workers:
                workers.remove(worker)
                if not workers:
                    del self._out[portion]
                    self._waiting.append(portion)
