"""Patterns of messages: trees, folding to a power of two, and butterflies.

Segments are summed up trees and sent down in a pipeline (:func:`sum_up`, :func:`send_down`). A fold runs a scheme
for powers of two on any p (Thakur, Rabenseifner & Gropp 2005, section 4.5). A butterfly is pairs of ranks in
log2(p) steps: whole vectors are exchanged (:func:`doubled`), or halves, quarters, ... of them (:func:`halve`) that
are gathered afterwards (:func:`double`).
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeAlias

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Parts, partition

_MIN_BYTES: Final = 8
"""Bytes of the longest data type that is summed."""


class Place(NamedTuple):
    """Neighbours of a node in a tree."""

    parents: list[int]
    """Empty for the root, else one rank."""
    children: list[int]

    def renamed(self, rank_of: Callable[[int], int]) -> "Place":
        """Return the place with ranks instead of nodes."""
        return Place([rank_of(node) for node in self.parents], [rank_of(node) for node in self.children])


def segmented(buffer: Array, parts: int, segment_bytes: int) -> list[list[Array]]:
    """Return ``parts`` equal parts of a vector, each as a list of segments; all lists are equally long.

    A segment has at most ``segment_bytes``, rounded up to a whole element; each part has at least one. Raises
    ValueError if ``segment_bytes`` is less than 8.
    """
    if segment_bytes < _MIN_BYTES:
        raise ValueError(f"segment_bytes = {segment_bytes}: a segment has at least {_MIN_BYTES} bytes")
    count = max(1, -(-buffer.nbytes // (parts * segment_bytes)))
    return [partition(part, count) for part in partition(buffer, parts)]


async def sum_up(comm: Comm, segments: Sequence[Array], place: Place, tag: int = 0) -> None:
    """Add the children's segments in their order; send each sum to the parent while the next segment arrives."""
    if not place.children:
        for segment in segments if place.parents else ():
            await comm.send(segment, place.parents[0], tag)
        return

    async def add_from(children: Sequence[int], segment: Array) -> None:
        for child in children:
            await comm.recv(inbox[: len(segment)], child, tag)
            await comm.add(segment, inbox[: len(segment)])

    with comm.scratch(len(segments[0]), segments[0]) as inbox:
        if not place.parents:
            for segment in segments:
                await add_from(place.children, segment)
            return
        [parent], (first, *others) = place
        await add_from(place.children, segments[0])
        for added, segment in pairwise(segments):
            await comm.exchange(added, parent, inbox[: len(segment)], first, tag)
            await comm.add(segment, inbox[: len(segment)])
            await add_from(others, segment)
        await comm.send(segments[-1], parent, tag)


async def send_down(comm: Comm, segments: Sequence[Array], place: Place, tag: int = 0) -> None:
    """Send the parent's segments to the children in their order; the next one arrives meanwhile."""
    if not (place.parents and place.children):
        for segment in segments:
            for parent in place.parents:
                await comm.recv(segment, parent, tag)
            for child in place.children:
                await comm.send(segment, child, tag)
        return
    [parent], (*others, last) = place
    await comm.recv(segments[0], parent, tag)
    for arrived, segment in pairwise(segments):
        for child in others:
            await comm.send(arrived, child, tag)
        await comm.exchange(arrived, last, segment, parent, tag)
    for child in place.children:
        await comm.send(segments[-1], child, tag)


class Fold(NamedTuple):
    """The largest power of two up to p, and the guests: the ranks 1, 3, ..., 2 ``guests`` - 1.

    The rank before a guest is its host. The ranks without the guests have the numbers 0 to ``power`` - 1.
    """

    power: int
    guests: int

    @staticmethod
    @cache
    def of(size: int) -> "Fold":
        """Return the fold of ``size`` ranks."""
        power = 1 << size.bit_length() - 1
        return Fold(power, size - power)

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
    if rank >= 2 * fold.guests:
        await scheme(comm, fold, buffer)
    elif fold.is_guest(rank):
        await comm.send(buffer, rank - 1)
        await comm.recv(buffer, rank - 1, tag=0)
    else:
        await add_guest(comm, fold, buffer)
        await scheme(comm, fold, buffer)
        await comm.send(buffer, rank + 1)


class Butterfly:
    """Pairs of the numbers below ``power``, a power of two.

    Number ``place[m]`` of the parts of the vector is summed by number m. Every number is reached from 0 along one
    path of rising steps. The steps of the path are the digits of its place, so that a number and the numbers which
    it reaches later always share one block.
    """

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
    # The distance of hop k is the sum of (-2)^i up to i = k, so that paths of rising hops reach each rank once.
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
        self.steps = len(butterfly.partners)
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
        # The upper digits of a place are those of the steps so far: blocks begin at multiples of their width.
        mine, theirs = (self.parts(butterfly.place[m] & -width, width) for m in (self.me, partner))
        return self.rank_of(partner), mine, theirs

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
