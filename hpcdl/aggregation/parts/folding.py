"""Folding: run a scheme for powers of two on any p (Thakur, Rabenseifner & Gropp 2005, section 4.5)."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hpcdl.fabric.comm import Array, Comm


class Fold(NamedTuple):
    """The largest power of two up to p, and the guests: the ranks 1, 3, ..., 2 ``guests`` - 1.

    The rank before a guest is its host. The ranks without the guests have the numbers 0 to ``power`` - 1.
    """

    power: int
    guests: int

    @classmethod
    def of(cls, size: int) -> "Fold":
        """Return the fold of ``size`` ranks."""
        power = 1 << size.bit_length() - 1
        return cls(power, size - power)

    def number(self, rank: int) -> int:
        """Return the number of a rank that is no guest; of a guest its host's."""
        return rank // 2 if rank < 2 * self.guests else rank - self.guests

    def rank(self, number: int) -> int:
        """Return the rank with a number."""
        return 2 * number if number < self.guests else number + self.guests

    def is_guest(self, rank: int) -> bool:
        """Return True for a guest."""
        return rank < 2 * self.guests and rank % 2 == 1

    def is_host(self, rank: int) -> bool:
        """Return True for the host of a guest, which is the next rank."""
        return rank < 2 * self.guests and rank % 2 == 0


async def add_guest(comm: Comm, fold: Fold, buffer: Array) -> None:
    """Add the vector of this host's guest, if it has one."""
    if fold.is_host(comm.rank):
        with comm.scratch(len(buffer), buffer) as inbox:
            await comm.recv(inbox, comm.rank + 1, tag=0)
            await comm.add(buffer, inbox)


async def folded(comm: Comm, buffer: Array, scheme: Callable[[Comm, Fold, Array], Awaitable[None]]) -> None:
    """Run ``scheme(comm, fold, buffer)``, a sum over the ranks that are no guests, on these ranks.

    A guest sends its vector to its host and receives the sum. If p is not a power of two this costs two more
    messages of n bytes and one more addition.
    """
    rank, fold = comm.rank, Fold.of(comm.size)
    if fold.is_guest(rank):
        await comm.send(buffer, rank - 1)
        await comm.recv(buffer, rank - 1, tag=0)
        return
    await add_guest(comm, fold, buffer)
    await scheme(comm, fold, buffer)
    if fold.is_host(rank):
        await comm.send(buffer, rank + 1)
