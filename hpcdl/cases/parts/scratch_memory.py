"""Scratch memory of a program: counted while it runs in virtual time on vectors without content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import BufferPool, phantom
from hpcdl.fabric.virtual.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hpcdl.fabric.comm import Array, Comm


def scratch_bytes(program: Callable[[Comm], Coroutine[Any, Any, Any]], ranks: int) -> int:
    """Bytes of :meth:`hpcdl.fabric.comm.Comm.scratch` that all ranks together hold at one time, at the least.

    A rank may borrow what another one has given back, whereas real ranks keep theirs. Raises the exceptions of the
    program.
    """
    made = []

    def make(size: int, like: Array) -> Array:
        made.append(size * like.itemsize)
        return phantom(size, like.dtype)

    world = simulated(ranks, next(iter(NETWORKS.values())))
    world.scratch = BufferPool(make)
    world.run(program)
    return sum(made)
