"""Programs of sizes alone: collectives, by symmetry where program and network have one, and layers.

Layers give arrays of their shapes and compute nothing, as on PyTorch's meta device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.traits import offered, operand
from hpcdl.cases.keys.counts import Counts
from hpcdl.fabric.comm import Array, Comm, Event
from hpcdl.fabric.network import Network
from hpcdl.fabric.vectors import Blocks, blocks_of, equal_parts, phantom
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.fabric.virtual.shifts import AsymmetryError, Shifts, shifts
from hpcdl.fabric.virtual.world import World
from hpcdl.nn.backend import Backend, backend
from hpcdl.nn.geometry import Shape, storage_dtype
from hpcdl.nn.layer import Layer, Site
from hpcdl.nn.split.part import Part
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
    counts: Counts | None = field(default=None, compare=False)
    """Of an alltoallv, whose ranks differ."""

    def __call__(self, comm: Comm) -> Coroutine[Any, Any, Any]:
        """Return the program of a rank."""
        if self.counts is not None:
            of_rank = self.counts[comm.rank], self.counts[:, comm.rank]
            vectors = (phantom(int(counts.sum()), self.dtype) for counts in of_rank)
            return self.function(comm, blocks(self.counts, comm.rank, *vectors))
        return self.function(comm, operand(self.collective, self._vector, self.ranks))

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
        if events is None and (world := self._by_symmetry(network)) is not None:
            # by the scheme's formula if parts have different lengths
            stated = cost.volume("Bytes", *self._costed) if self.length % self.ranks else None
            sent = max(world.bytes) if stated is None else round(stated / self.ranks)
            return Simulation(world.now, max(world.messages), sent, len(world.simulated))
        cost.check_messages(*self._costed)
        world = self._run(network, events=events)
        over = world.flows.global_bytes if world.flows is not None else None
        return Simulation(world.now, max(world.messages), max(world.bytes), self.ranks, over)

    def _by_symmetry(self, network: Network) -> World | None:
        if self.counts is not None:
            return None
        outcome = by_symmetry(self.ranks, network, lambda grid: (self._run(network, grid), None))
        return None if outcome is None else outcome[0]

    def _run(self, network: Network, grid: Shifts | None = None, events: list[list[Event]] | None = None) -> World:
        world = simulated(self.ranks, network, shifts=grid, events=events)
        world.run(self)
        return world


def blocks(counts: Counts, rank: int, outgoing: Array, incoming: Array) -> Blocks:
    """Cut what ``rank`` sends and receives into blocks of the lengths ``counts``, (ranks, ranks)."""
    return Blocks(blocks_of(outgoing, counts[rank].tolist()), blocks_of(incoming, counts[:, rank].tolist()))


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


@cache
def phantoms(shape: Shape, dtype: str) -> Array:
    """Return a size-only array, :func:`hpcdl.fabric.vectors.phantom`."""
    return phantom(math.prod(shape), dtype).reshape(shape)


class Zeros:
    """Arrays of zeros that share one memory, of the longest so far; they must not be written to."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint8)

    def __call__(self, shape: Shape, dtype: str) -> Array:
        """Return an array of ``shape``."""
        if (size := math.prod(shape) * np.dtype(dtype).itemsize) > self._memory.size:
            self._memory = np.zeros(size, np.uint8)
        return self._memory[:size].view(dtype).reshape(shape)


def sizes(
    zeros: Callable[[int, str], Array] = phantom,
    activations: Callable[[Shape, str], Array] = phantoms,
    draw: Callable[[int], Array] | None = None,
) -> Backend:
    """Return a backend without arithmetic, whose backward leaves the gradients as they are.

    ``zeros(size, dtype)`` makes the replica's vectors, and ``activations(shape, dtype)`` what layers give: by
    default arrays without memory, for simulations; otherwise :class:`Zeros`, which can be sent. ``draw(size)``
    returns values that each backward writes into a tensor's gradient, if they matter.
    """
    return replace(
        backend("numpy"),
        name="sizes",
        zeros=zeros,
        asarray=lambda array: array,
        cross_entropy=lambda _blob: lambda logits, _labels, _scale: (math.nan, 0, logits),
        bind=partial(BoundSizes, activations, draw),
    )


class BoundSizes:
    """Layer, or rank's part of a layer, that gives arrays of the right shapes.

    An array of a whole batch has one row (:attr:`hpcdl.nn.split.part.Layout.of_batch`) and does not tell the
    images. So the part that gives it leaves its input for the part that takes it. A branch that ends by images
    does not tell those of the whole batch: the fork leaves its input for the switch after the branch.
    """

    def __init__(
        self,
        activations: Callable[[Shape, str], Array],
        draw: Callable[[int], Array] | None,
        layer: Layer,
        shape: Shape,
        site: Site,
    ) -> None:
        self._activations = activations
        self._shape, self._output = shape, layer.output(shape)
        self._dtype = storage_dtype(site.dtype)
        part = layer if isinstance(layer, Part) else None
        self._from_batch, self._to_batch = (part.takes.of_batch, part.gives.of_batch) if part else (False, False)
        self._stash = site.stash(part.of or part.name) if part else []
        self._joins = part is not None and part.stashes and not (self._from_batch or self._to_batch)
        self._forks = layer.name.endswith(".fork")
        self._as_forked = part is not None and part.takes.by_images != part.gives.by_images
        self._forked = site.stash(f"input of {layer.name.rpartition('.')[0]}") if self._joins else []
        self._taken = 0
        """Images of the joint's last input."""
        self._gradients: list[tuple[Array, Array]] = []
        """This layer's gradients, and their values."""
        if draw is not None:
            own = (view for name, view in site.gradients.items() if name.startswith(f"{site.path}."))
            self._gradients = [(view, draw(view.size).reshape(view.shape)) for view in own]

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.backend.Bound`."""
        rows = self._rows(x, self._from_batch, self._to_batch)
        if self._joins:
            self._taken = len(x)
            if self._forks:
                self._forked[:] = [x]
            rows = len(self._forked[0]) if self._as_forked else rows
        return self._activations((rows, *self._output), self._dtype)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """Write the values of the gradients, if there are any; return an array of the input's shape."""
        for gradient, values in self._gradients:
            gradient[...] = values
        rows = self._taken if self._joins else self._rows(dy, self._to_batch, self._from_batch)
        return self._activations((rows, *self._shape), self._dtype) if needs_dx else None

    def _rows(self, array: Array, from_batch: bool, to_batch: bool) -> int:
        if to_batch:
            self._stash.append(array)
            return 1
        return len(self._stash.pop() if from_batch else array)
