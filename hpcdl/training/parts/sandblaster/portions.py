"""Assignment of a batch's portions to workers; each portion counts once."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

MARGIN: Final = 2
"""Workers push after every portion once the rest of the batch takes at most ``MARGIN`` portions of their time."""


class Portions:
    """Assignment of the portions of one batch to workers (Dean et al. 2012, section 4.2).

    An idle worker gets the next portion. When all are assigned, ``backup`` assigns the oldest unfinished portion
    to a second worker, and the first result counts. A worker accumulates the gradients of its accepted portions.
    It pushes their sum after ``push_every`` portions. Near the end it pushes after every portion, so that no rank
    waits for the accumulated sum of a slow worker whose last portion another worker computes too.
    """

    def __init__(self, number: int, *, push_every: int, backup: bool) -> None:
        self._number = number
        self._push_every = push_every
        self._backup = backup
        self._unassigned = deque(range(number))
        self._assigned: dict[int, list[int]] = {}
        """Unfinished portions, the oldest first, and the workers that compute them."""
        self._losses: dict[int, float] = {}
        self._unpushed: dict[int, list[int]] = {}
        self._finished: Counter[int] = Counter()
        self._one_by_one = False

    @property
    def complete(self) -> bool:
        """True when every portion has been accepted and pushed."""
        return len(self._losses) == self._number and not self._unpushed

    @property
    def loss(self) -> float:
        """Sum of the accepted losses, in the order of the portions."""
        return sum(self._losses[portion] for portion in sorted(self._losses))

    def assign(self, worker: int) -> int | None:
        """Return the next portion of an idle ``worker``; None if there is none."""
        if self._unassigned:
            portion = self._unassigned.popleft()
            self._assigned[portion] = [worker]
            return portion
        if self._backup:
            for portion, workers in self._assigned.items():
                if len(workers) == 1 and worker not in workers:
                    workers.append(worker)
                    return portion
        return None

    def accept(self, worker: int, portion: int, loss: float) -> bool:
        """Record the result of ``worker`` for ``portion``; return whether it counts.

        It does not if another worker was first, even one that has failed since: see :meth:`lost`.
        """
        self._finished[worker] += 1
        if worker not in self._assigned.get(portion, ()):
            return False
        del self._assigned[portion]
        self._losses[portion] = loss
        self._unpushed.setdefault(worker, []).append(portion)
        return True

    def must_push(self, worker: int) -> bool:
        """Return whether an idle ``worker`` must push its accumulated gradients next."""
        unpushed = len(self._unpushed.get(worker, ()))
        # portions that all workers compute while this one computes a portion
        rate = self._finished.total() / max(1, self._finished[worker])
        near_end = self._one_by_one or len(self._unassigned) <= MARGIN * rate
        return unpushed > 0 and (unpushed >= self._push_every or near_end)

    def unpushed(self, worker: int) -> list[int]:
        """Return the accepted portions that ``worker`` has not pushed."""
        return self._unpushed.get(worker, [])

    def pushed(self, worker: int) -> None:
        """Record that ``worker`` has pushed its accumulated gradients to all shards."""
        self._unpushed.pop(worker, None)

    def lost(self, worker: int) -> None:
        """Assign the unpushed and unfinished portions of a failed ``worker`` again.

        Some shards may have received its last push. A shard ignores a push of portions that it has counted.
        Therefore all workers push after every portion from now on.
        """
        self._one_by_one = True
        for portion in self._unpushed.pop(worker, ()):
            del self._losses[portion]
            self._unassigned.append(portion)
        for portion, workers in list(self._assigned.items()):
            if worker in workers:
                workers.remove(worker)
                if not workers:
                    del self._assigned[portion]
                    self._unassigned.append(portion)
