"""Collectives of schemes as programs to simulate, by symmetry where programs and network have one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.collectives import offered, operand
from hpcdl.fabric.comm import Array, Comm, Event
from hpcdl.fabric.network import Network
from hpcdl.fabric.vectors import equal_parts, phantom
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.fabric.virtual.shifts import AsymmetryError, Shifts, shifts
from hpcdl.fabric.virtual.world import World
from hpcdl.trace.recorder import SIMULATED_EVENT_LIMIT

T = TypeVar("T")

MAX_UNEQUAL: Final = 2 * 10**6
"""Messages of all ranks up to which programs with unequal parts are simulated on all ranks: ten seconds."""

MAX_TRACED: Final = SIMULATED_EVENT_LIMIT // 3
"""Messages of all ranks whose events are kept: a message is two events, and often a sum."""


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
    global_bytes: int | None = None
    """Over links between groups of a topology; None without one."""


@dataclass(frozen=True)
class Operation:
    """A collective of a scheme on size-only vectors."""

    collective: str
    function: partial[Coroutine[Any, Any, None]]
    """The collective with its settings bound."""
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

    @property
    def _costed(self) -> tuple[Any, int, int, Mapping[str, Any]]:
        """Arguments of the formulas of :mod:`hpcdl.aggregation.parts.cost`."""
        return self.function.func, self.ranks, self._vector.nbytes, self.function.keywords

    def check(self, network: Network, *, traced: bool = False) -> None:
        """Raise ValueError if the simulation has too many messages, or if ``traced`` too many events."""
        try:
            cost.check_messages(*self._costed, most=MAX_TRACED if traced else cost.MAX_MESSAGES)
        except ValueError:
            if traced or self._by_symmetry(network) is None:
                raise

    def simulate(self, network: Network, events: list[list[Event]] | None = None) -> Simulation:
        """Return time and volume on ``network``; add the ``events`` of each rank, of which then all are simulated.

        Raises ValueError for too many messages, and where the scheme does.
        """
        if events is None and (outcome := self._by_symmetry(network)) is not None:
            world, ends = outcome
            # by the scheme's formula if parts have different lengths
            stated = cost.volume("Bytes", *self._costed) if self.length % self.ranks else None
            sent = max(world.bytes) if stated is None else round(stated / self.ranks)
            return Simulation(world.now, max(world.messages), sent, len(world.simulated), ends)
        cost.check_messages(*self._costed)
        world, ends = self._run(network, events=events)
        over = world.flows.global_bytes if world.flows is not None else None
        return Simulation(world.now, max(world.messages), max(world.bytes), self.ranks, ends, over)

    def _by_symmetry(self, network: Network) -> tuple[World, tuple[float, ...]] | None:
        return by_symmetry(self.ranks, network, partial(self._run, network))

    def _run(
        self, network: Network, grid: Shifts | None = None, events: list[list[Event]] | None = None
    ) -> tuple[World, tuple[float, ...]]:
        world = simulated(self.ranks, network, shifts=grid, events=events)
        ended = world.run(self)
        return world, tuple(map(max, zip(*ended, strict=True))) if self.beside else ()


def by_symmetry(
    ranks: int, network: Network, simulate: Callable[[Shifts], tuple[World, T]]
) -> tuple[World, T] | None:
    """Return what ``simulate(shifts)`` returns where one host's ranks stand for all; None if they do not.

    Grids of ranks follow from the divisions of the programs. Parts of a vector are as long as its longest one. If
    that changes a part, the result is None up to :data:`MAX_UNEQUAL` messages.
    """
    sides: Sequence[int] = (ranks,)
    while sides and (grid := shifts(sides, network)) is not None:
        with equal_parts() as unequal:
            try:
                world, result = simulate(grid)
                if unequal and max(world.messages) * ranks <= MAX_UNEQUAL:
                    return None
                alike = all(simulate(other)[0].done == world.done for other in grid.others())
            except AsymmetryError as error:
                sides = error.sides
                continue
            except Exception:  # noqa: BLE001 - the simulation of all ranks tells whether a program is wrong
                return None
        return (world, result) if alike else None
    return None


def operation(
    collective: str, scheme: str, settings: Mapping[str, Any], ranks: int, length: int, dtype: str
) -> Operation:
    """Return a scheme's collective on ``length`` elements. Raises ValueError if the scheme does not have it."""
    function = partial(offered(collective, scheme), **settings)
    return Operation(collective, function, ranks, length, dtype)
