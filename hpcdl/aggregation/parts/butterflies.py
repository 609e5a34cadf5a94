"""Butterflies: pairs of a power of two of ranks in log2(p) steps, and sums along them.

A butterfly is its partners. Whole vectors are exchanged (:func:`doubled`), or halves, quarters, ... of them
(:func:`halve`) that are gathered afterwards (:func:`double`). Number ``place[m]`` of the parts of the vector is
summed by number m. Every number is reached from 0 along one path of rising steps; the steps of the path are the
digits of its place, so that a number and the numbers which it reaches later always share one block.
"""

from collections.abc import Callable
from functools import cache, cached_property, partial
from itertools import accumulate
from typing import TypeAlias

from hpcdl.aggregation.parts.folding import Fold, add_guest, folded
from hpcdl.aggregation.parts.trees import Place
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Parts


class Butterfly:
    """Pairs of the numbers below ``power``, a power of two."""

    def __init__(self, power: int, partner: Callable[[int, int], int]) -> None:
        """``partner(number, step)``: with which number a number exchanges in a step."""
        self.power = power
        self.partners = [[partner(m, step) for m in range(power)] for step in range(power.bit_length() - 1)]
        """By step and number."""

    @cached_property
    def place(self) -> list[int]:
        """The part of the vector that each number sums."""
        place = {0: 0}
        for step, pairs in enumerate(self.partners):
            place |= {pairs[m]: at + (self.power >> step + 1) for m, at in place.items()}
        return [place[m] for m in range(self.power)]

    @cached_property
    def number(self) -> list[int]:
        """The number that sums each part of the vector."""
        return sorted(range(self.power), key=self.place.__getitem__)

    @cached_property
    def tree(self) -> list[Place]:
        """Each number's place in the tree of the steps in reverse; the child of its first step is first."""
        tree = {0: Place([], [])}
        for pairs in reversed(self.partners):
            for m in list(tree):
                tree[m].children.append(pairs[m])
                tree[pairs[m]] = Place([m], [])
        return [tree[m] for m in range(self.power)]


@cache
def farthest_first(power: int) -> Butterfly:
    """Return the butterfly of the distances p/2, p/4, ..., 1, in which number m sums part m."""
    return Butterfly(power, lambda m, step: m ^ power >> step + 1)


@cache
def nearest_first(power: int) -> Butterfly:
    """Return the butterfly of the distances 1, 2, ..., p/2."""
    return Butterfly(power, lambda m, step: m ^ 1 << step)


@cache
def swings(power: int, sides: tuple[int, ...] | None = None, port: int = 0) -> Butterfly:
    """Return the butterfly of the distances 1, -1, 3, -5, ... on a torus, by default a ring, for a port's part."""
    sides = sides or (power,)
    strides = list(accumulate(reversed(sides), lambda stride, side: stride * side, initial=1))[-2::-1]
    axes = [(axis - port) % len(sides) for axis in reversed(range(len(sides)))]
    hops = [side.bit_length() - 1 for side in sides]
    turns = [(axis, hop) for hop in range(max(hops)) for axis in axes if hop < hops[axis]]
    distances = list(accumulate(range(max(hops)), lambda distance, _: 1 - 2 * distance, initial=1))
    backward = port // len(sides) % 2

    def partner(number: int, step: int) -> int:
        axis, hop = turns[step]
        at = number // strides[axis] % sides[axis]
        to = (at - distances[hop] if (at + backward) % 2 else at + distances[hop]) % sides[axis]
        return number + (to - at) * strides[axis]

    return Butterfly(power, partner)


Maker: TypeAlias = Callable[[int], Butterfly]
"""Returns the butterfly of a power of two of numbers."""


class Division:
    """A vector that is divided among the numbers of a butterfly, as one of the ranks sees it."""

    def __init__(self, comm: Comm, fold: Fold, butterfly: Butterfly, whole: Array | Parts) -> None:
        """Cut a vector into equal parts; parts of ranks go to their numbers, those of guests to their hosts."""
        self.butterfly, self.rank_of = butterfly, fold.rank
        self.me = fold.number(comm.rank)
        self.whole = whole.whole if isinstance(whole, Parts) else whole
        self._begins = whole.begins if isinstance(whole, Parts) else None

    def _edge(self, part: int) -> int:
        """Return the begin of a part; at the number of parts the end of the vector."""
        if self._begins is None:
            return len(self.whole) * part // self.butterfly.power
        return self._begins[self.rank_of(part) if part < self.butterfly.power else -1]

    def parts(self, first: int, width: int = 1) -> Array:
        """Return ``width`` parts of the vector."""
        return self.whole[self._edge(first) : self._edge(first + width)]

    def exchange(self, step: int) -> tuple[int, Array, Array]:
        """Return the rank of the partner in a step, this number's block after the step, and the partner's."""
        butterfly, width = self.butterfly, self.butterfly.power >> step + 1
        partner = butterfly.partners[step][self.me]
        mine, theirs = (self.parts(butterfly.place[m] & -width, width) for m in (self.me, partner))
        return self.rank_of(partner), mine, theirs

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.butterfly.partners)

    def is_root_of(self, step: int) -> bool:
        """Return True for a number that has been reached before a step, from 0 on."""
        return self.butterfly.place[self.me] % (self.butterfly.power >> step) == 0


def is_latency(optimal: str) -> bool:
    """Return True for "latency", False for "bandwidth". Raises ValueError for another word."""
    if optimal not in {"latency", "bandwidth"}:
        raise ValueError(f"optimal = {optimal!r}: must be 'bandwidth' or 'latency'")
    return optimal == "latency"


async def allreduce(butterfly: Maker, optimal: str, comm: Comm, buffer: Array) -> None:
    """Sum by exchanges of whole vectors (``optimal`` = "latency") or of halves ("bandwidth"). Any p."""
    await folded(comm, buffer, partial(doubled if is_latency(optimal) else halved_and_doubled, butterfly))


async def doubled(butterfly: Maker, comm: Comm, fold: Fold, buffer: Array) -> None:
    """Sum ``buffer`` over the numbers of a fold in place by exchanges of whole vectors; equal bits on all."""
    me = fold.number(comm.rank)
    with comm.scratch(len(buffer), buffer) as inbox:
        for pairs in butterfly(fold.power).partners:
            partner = fold.rank(pairs[me])
            await comm.exchange(buffer, partner, inbox, partner)
            await comm.add(buffer, inbox)


async def halved_and_doubled(butterfly: Maker, comm: Comm, fold: Fold, buffer: Array) -> None:
    """Sum ``buffer`` over the numbers of a fold in place by exchanges of halves, then gather them."""
    division = Division(comm, fold, butterfly(fold.power), buffer)
    await halve(comm, division)
    await double(comm, division)


async def halve(comm: Comm, division: Division) -> None:
    """Recursive halving: each number ends with the sum of its part."""
    half = len(division.parts(0, division.butterfly.power // 2))
    with comm.scratch(max(half, len(division.whole) - half), division.whole) as inbox:
        for step in range(division.steps):
            partner, mine, theirs = division.exchange(step)
            arriving = inbox[: len(mine)]
            await comm.exchange(theirs, partner, arriving, partner)
            await comm.add(mine, arriving)


async def double(comm: Comm, division: Division) -> None:
    """Recursive doubling: gather the parts on every number."""
    for step in reversed(range(division.steps)):
        partner, mine, theirs = division.exchange(step)
        await comm.exchange(mine, partner, theirs, partner)


async def reduce_scatter(butterfly: Maker, comm: Comm, chunks: Parts) -> None:
    """Recursive halving: each rank r ends with the sum of chunk r.

    A part that a number sums for another one is sent to it in the end. A guest gets its chunk from its host.
    """
    rank, fold = comm.rank, Fold.of(comm.size)
    if fold.is_guest(rank):
        await comm.send(chunks.whole, rank - 1)
        await comm.recv(chunks[rank], rank - 1, tag=0)
        return
    await add_guest(comm, fold, chunks.whole)
    division = Division(comm, fold, butterfly(fold.power), chunks)
    await halve(comm, division)
    me, place = division.me, division.butterfly.place[division.me]
    if place != me:
        source = fold.rank(division.butterfly.number[me])
        await comm.exchange(division.parts(place), fold.rank(place), division.parts(me), source)
    if fold.is_host(rank):
        await comm.send(chunks[rank + 1], rank + 1)


async def allgather(butterfly: Maker, comm: Comm, chunks: Parts) -> None:
    """Recursive doubling: all ranks get each rank r's chunk r; the messages of a reduce-scatter in reverse."""
    rank, whole, fold = comm.rank, chunks.whole, Fold.of(comm.size)
    if fold.is_guest(rank):
        await comm.send(chunks[rank], rank - 1)
        await comm.recv(whole, rank - 1, tag=0)
        return
    if fold.is_host(rank):
        await comm.recv(chunks[rank + 1], rank + 1, tag=0)
    division = Division(comm, fold, butterfly(fold.power), chunks)
    me, place = division.me, division.butterfly.place[division.me]
    if place != me:
        dest = fold.rank(division.butterfly.number[me])
        await comm.exchange(division.parts(me), dest, division.parts(place), fold.rank(place))
    await double(comm, division)
    if fold.is_host(rank):
        await comm.send(whole, rank + 1)
