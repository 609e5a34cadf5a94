"""Collectives of schemes as programs to simulate, by symmetry where scheme and network have one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hpcdl import registry
from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.collectives import offered, operand
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm, PeerLost
from hpcdl.fabric.network import Network
from hpcdl.fabric.vectors import equal_parts, phantom
from hpcdl.fabric.virtual.shifts import AsymmetryError, Shifts, shifts
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.fabric.virtual.world import Deadlock, World

T = TypeVar("T")


class Simulation(NamedTuple):
    """Outcome of a simulated collective."""

    seconds: float
    messages: int
    """Sent by the busiest rank."""
    bytes: int
    """Sent by the busiest rank; the mean over ranks if they differ and one stands for all."""
    simulated_ranks: int
    """Number of ranks that stand for all by symmetry; all if scheme or network has none."""
    ends: tuple[float, ...] = ()
    """Times at which two collectives have ended that began at once (s)."""


@dataclass(frozen=True)
class Operation:
    """A collective of a scheme on size-only vectors."""

    collective: str
    function: partial[Coroutine[Any, Any, None]]
    """The collective with its settings bound."""
    sides: Callable[..., tuple[int, ...]] | None
    """See :attr:`Aggregation.sides`."""
    ranks: int
    length: int
    """Elements of the vector."""
    dtype: str
    beside: Operation | None = None
    """A collective of the same scheme that every rank starts with this one."""

    def __call__(self, comm: Comm) -> Coroutine[Any, Any, Any]:
        """Return the program of a rank."""
        if self.beside is not None:
            return self._both(comm, self.beside)
        return self.function(comm, operand(self.collective, self._vector, self.ranks))

    async def _both(self, comm: Comm, beside: Operation) -> list[float]:
        tasks = [comm.start(each(comm)) for each in (replace(self, beside=None), beside)]
        for task in tasks:
            await task
        return [task.time for task in tasks]

    @property
    def _vector(self) -> Array:
        return phantom(self.length, self.dtype)

    def check(self, network: Network) -> None:
        """Raise ValueError if the simulation on ``network`` has too many messages."""
        if self.symmetry(network) is None:
            cost.check_messages(self.function.func, self.ranks, self._vector.nbytes, self.function.keywords)

    def symmetry(self, network: Network) -> Shifts | None:
        """Return the shifts that change no time on ``network``; None if there are none."""
        grid = symmetry(self.sides, self.function, self.ranks, network)
        # unequal parts on several links: the longest part need not be what all others wait for
        return None if grid is None or (grid.representatives > 1 and self.length % self.ranks) else grid

    def simulate(self, network: Network) -> Simulation:
        """Return time and volume on ``network``.

        Raises ValueError for too many messages, and where the scheme does.
        """
        grid = self.symmetry(network)
        if grid is not None and (outcome := by_symmetry(grid, partial(self._run, network))) is not None:
            (world, ends), unequal = outcome
            if not (unequal and self.beside):
                return Simulation(world.now, max(world.messages), self._bytes(world), grid.representatives, ends)
        self.check(network)
        world, ends = self._run(network)
        return Simulation(world.now, max(world.messages), max(world.bytes), self.ranks, ends)

    def _run(self, network: Network, grid: Shifts | None = None) -> tuple[World, tuple[float, ...]]:
        world = simulated(self.ranks, network, shifts=grid)
        ended = world.run(self)
        return world, tuple(map(max, zip(*ended, strict=True))) if self.beside else ()

    def _bytes(self, world: World) -> int:
        """Return the bytes that a rank sends, by the scheme's formula if parts have different lengths."""
        arguments = (self.function.func, self.ranks, self._vector.nbytes, self.function.keywords)
        stated = cost.volume("Bytes", *arguments) if self.length % self.ranks else None
        return max(world.bytes) if stated is None else round(stated / self.ranks)


def symmetry(
    sides: Callable[..., tuple[int, ...]] | None, scheme: partial[Any], ranks: int, network: Network
) -> Shifts | None:
    """Return the shifts of the grid of a scheme with settings that move whole hosts; None if there are none."""
    if sides is None:
        return None
    return shifts(sides(ranks, **registry.in_full(scheme.func, scheme.keywords)), network)


def by_symmetry(grid: Shifts, simulate: Callable[[Shifts], T]) -> tuple[T, bool] | None:
    """Return what ``simulate(grid)`` returns, with equal parts, and True if some parts were unequal.

    None if programs use operations without symmetry.
    """
    try:
        with equal_parts() as unequal:
            return simulate(grid), bool(unequal)
    except (AsymmetryError, Deadlock, PeerLost):
        return None


def operation(
    collective: str, scheme: str, settings: Mapping[str, Any], ranks: int, length: int, dtype: str
) -> Operation:
    """Return a scheme's collective on ``length`` elements. Raises ValueError if the scheme does not have it."""
    function = partial(offered(collective, scheme), **settings)
    sides = registry.traits("aggregation", scheme, Aggregation).sides
    return Operation(collective, function, sides, ranks, length, dtype)
