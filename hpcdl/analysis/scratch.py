"""How much memory a program borrows: counted while it runs in virtual time on vectors that have a size only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.phantom import phantom
from hpcdl.fabric.scratch import Scratch
from hpcdl.fabric.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hpcdl.fabric.comm import Array, Comm


def scratch_bytes(program: Callable[[Comm], Coroutine[Any, Any, Any]], ranks: int) -> int:
    """Bytes of :meth:`hpcdl.fabric.comm.Comm.scratch` that all ranks together hold at one time, at the least.

    What a rank gives back is lent to whoever asks next, of any rank, where real ranks keep theirs. Raises what the
    program raises.
    """
    made = []

    def make(size: int, like: Array) -> Array:
        made.append(size * like.itemsize)
        return phantom(size, like.dtype)

    world = simulated(ranks, next(iter(NETWORKS.values())))
    world.scratch = Scratch(make)
    world.run(program)
    return sum(made)
