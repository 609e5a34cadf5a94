"""Messages between workers and servers of asynchronous training, and the roles of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hpcdl.fabric.vectors import partition, phantom

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.fabric.comm import Array

REQUEST: Final = 0
"""Tag of a worker's :class:`Request`."""
GRADIENT: Final = 1
"""Tag of the gradient that follows a request with ``batches`` > 0."""
ANSWER: Final = 2
"""Tag of a server's :class:`Answer`."""
PARAMETERS: Final = 3
"""Tag of the shard that follows an answer."""

LEAVE: Final = -1
"""Value of :attr:`Request.wanted` of a worker that leaves; the server sends no answer."""

LOST_SHARD: Final = "it kept a part of the parameters"
"""Reason why training cannot continue without a server."""


class Request(NamedTuple):
    """Request of a worker to a server."""

    batches: int
    """Mini-batches in the sum of gradients that follows; 0: no gradient follows."""
    version: int
    """Version of the shard from which the first of these gradients was computed."""
    clock: int
    """Mini-batches that the worker has finished."""
    left: int
    """Mini-batches granted to the worker and not finished."""
    wanted: int
    """Mini-batches requested together with the shard; 0: neither is requested; or :data:`LEAVE`."""

    @staticmethod
    def buffer() -> npt.NDArray[np.int64]:
        """Return a receive buffer for a request."""
        return np.empty(len(Request._fields), np.int64)


class Answer(NamedTuple):
    """Answer of a server to a worker that requested parameters."""

    granted: int
    """Mini-batches granted; only the first server's number counts. 0 to a worker without mini-batches ends its
    training."""
    version: int
    """Number of updates of the shard."""
    applied: int
    """Parts of global batches in those updates; see
    :attr:`hpcdl.training.parts.asynchronous.server.Rules.weights`."""

    @staticmethod
    def buffer() -> npt.NDArray[np.int64]:
        """Return a receive buffer for an answer."""
        return np.empty(len(Answer._fields), np.int64)


@dataclass(frozen=True)
class Layout:
    """Roles of ranks: workers are ranks 0 .. ``workers`` - 1, server s of ``servers`` is rank ``first`` + s."""

    workers: int
    servers: int
    first: int

    @staticmethod
    def of(ranks: int, servers: int, *, dedicated: bool) -> Layout:
        """Return the roles: the first ranks are servers and workers; ``dedicated`` ones are the last, servers
        only.

        Raises ValueError for too few ranks.
        """
        if servers < 1:
            raise ValueError(f"servers: must be at least 1, not {servers}")
        most = ranks - 1 if dedicated else ranks
        if servers > most:
            raise ValueError(
                f"servers: {servers}{' dedicated' if dedicated else ''} on {ranks} ranks, at most {most} fit"
            )
        return Layout(ranks - servers, servers, ranks - servers) if dedicated else Layout(ranks, servers, 0)

    def works(self, rank: int) -> bool:
        """Return whether ``rank`` is a worker."""
        return rank < self.workers

    def serves(self, rank: int) -> bool:
        """Return whether ``rank`` is a server."""
        return self.first <= rank < self.first + self.servers

    def shards(self, vector: Array) -> list[Array]:
        """Return views of all servers' parts of a vector as long as the parameters."""
        return partition(vector, self.servers)

    def spans(self, size: int) -> list[slice]:
        """Return the slices of :meth:`shards` in a vector of ``size`` elements."""
        bounds = accumulate((shard.size for shard in self.shards(phantom(size, np.uint8))), initial=0)
        return [slice(begin, end) for begin, end in pairwise(bounds)]
