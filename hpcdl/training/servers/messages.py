"""What workers and servers of asynchronous training tell each other, and which rank is what."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hpcdl.fabric.comm import partition

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.fabric.comm import Array

REQUEST: Final = 0
"""Tag of a worker's :class:`Request`."""
GRADIENT: Final = 1
"""Tag of the gradient that follows it, if there is one."""
ANSWER: Final = 2
"""Tag of a server's :class:`Answer`."""
PARAMETERS: Final = 3
"""Tag of the shard that follows it."""

LEAVE: Final = -1
"""In the place of what a worker wants: it is going, and there is no answer."""


class Request(NamedTuple):
    """What a worker tells a server. A worker's mini-batches are numbered; their number is its clock."""

    batches: int
    """Mini-batches in the sum of gradients that follows; 0: none follows."""
    version: int
    """Of the shard when the first of them was computed."""
    clock: int
    """Mini-batches that the worker has finished."""
    left: int
    """Mini-batches that it has been granted and not finished."""
    wanted: int
    """Mini-batches that it asks to be granted, and the shard with them; 0: neither; or :data:`LEAVE`."""

    @staticmethod
    def room() -> npt.NDArray[np.int64]:
        """Where one is received."""
        return np.empty(len(Request._fields), np.int64)


class Answer(NamedTuple):
    """What a server tells a worker that has asked for parameters."""

    granted: int
    """Mini-batches; the first server's word counts. 0 to a worker that has none left: training is over."""
    version: int
    """Updates that the shard has seen."""
    applied: int
    """Parts of global batches in those updates; see :attr:`hpcdl.training.servers.server.Rules.weights`."""

    @staticmethod
    def room() -> npt.NDArray[np.int64]:
        """Where one is received."""
        return np.empty(len(Answer._fields), np.int64)


@dataclass(frozen=True)
class Layout:
    """Who does what: workers are ranks 0 .. ``workers`` - 1, server s of ``servers`` is rank ``first`` + s."""

    workers: int
    servers: int
    first: int

    @staticmethod
    def of(ranks: int, servers: int, *, dedicated: bool) -> Layout:
        """Dedicated servers are the last ranks and do nothing else; others are the first ranks, and work too.

        Raises ValueError where there are too few ranks.
        """
        if servers < 1:
            raise ValueError(f"servers: must be at least 1, not {servers}")
        most = ranks - 1 if dedicated else ranks
        if servers > most:
            raise ValueError(
                f"servers: {servers} {'dedicated ones' if dedicated else 'of them'} on {ranks} ranks; "
                f"there is room for {most}"
            )
        return Layout(ranks - servers, servers, ranks - servers) if dedicated else Layout(ranks, servers, 0)

    def works(self, rank: int) -> bool:
        """Whether ``rank`` is a worker."""
        return rank < self.workers

    def serves(self, rank: int) -> bool:
        """Whether ``rank`` is a server."""
        return self.first <= rank < self.first + self.servers

    def shards(self, vector: Array) -> list[Array]:
        """Views of all servers' parts of a vector as long as the parameters."""
        return partition(vector, self.servers)

    def start(self, vector: Array, rank: int) -> int:
        """Where the shard of server ``rank`` begins."""
        bounds = accumulate((shard.size for shard in self.shards(vector)), initial=0)
        return [begin for begin, _ in pairwise(bounds)][rank - self.first]
