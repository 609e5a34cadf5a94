"""Contract of an aggregation scheme, checked on ranks of one process: sums, bits, deadlocks, stated costs."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.entries import Series, dense
from hpcdl.cases.simulation.operations import Operation
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.fabric.virtual.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from hpcdl.aggregation.parts.entries import Reduced
    from hpcdl.aggregation.parts.traits import Aggregation
    from hpcdl.fabric.comm import Array, Comm

    Scheme = Callable[..., Coroutine[Any, Any, Any]]


RANKS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17)
"""Powers of two, their neighbours and primes."""
SCHEDULES: Final = 5
"""Random orders in which the ranks take turns, for each number of ranks and length."""
PER_RANK: Final = 64
"""Elements per rank in the cost check, so that every chunk has the same length."""
NETWORK: Final = NETWORKS["ethernet-10g"]
"""Network of the cost check: alpha, beta and gamma all differ from 0."""
PIECES: Final = (1, 300, 2, 700)
"""Elements of vectors that are summed at the same time."""


class Check(NamedTuple):
    """Result of one check."""

    holds: bool
    what: str
    detail: str


class BrokenContractError(Exception):
    """A check found a difference; the message has its place."""


def check_scheme(scheme: Scheme, traits: Aggregation) -> Iterator[Check]:
    """Yield the result of each check of ``scheme``, an ``async def`` over a communicator and a vector.

    A sparse scheme sums entries: see :mod:`hpcdl.aggregation.parts.entries`. It states no cost, and neither does a
    scheme whose messages a library or another scheme decides.
    """
    subject = _Entries(scheme) if traits.sparse else _Vectors(scheme)
    checks: list[tuple[str, Callable[[], str]]] = [
        (subject.conserved, partial(_sums, subject)),
        ("equal bits on all ranks", partial(_bits, subject)),
        ("several at once", partial(_several, subject)),
        ("sub-communicators", partial(_parts, subject)),
    ]
    if not (traits.native or traits.adaptive or traits.sparse):
        checks.append(("messages and bytes as stated", partial(_volume, scheme)))
        checks.append(("simulated time as stated", partial(_time, scheme)))
    if traits.sides is not None:
        checks.append(("symmetry as declared", partial(_symmetry, scheme, traits)))
    for what, check in checks:
        try:
            yield Check(holds=True, what=what, detail=check())
        except Exception as error:  # noqa: BLE001 - the scheme is a user's and may raise anything
            reason = str(error) if isinstance(error, BrokenContractError) else f"{type(error).__name__}: {error}"
            yield Check(holds=False, what=what, detail=reason)


class _Vectors:
    """Sums of whole vectors in place."""

    conserved = "exact sums"

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme

    def sizes(self, ranks: int) -> Sequence[tuple[int, int]]:
        """Return awkward lengths of a vector: 0, around the number of ranks, and a prime."""
        return [(size, size) for size in sorted({0, 1, ranks - 1, ranks, ranks + 1, 1009})]

    def drawn(self, ranks: int, size: int, _count: int, *seed: int) -> list[Any]:
        """Return whole numbers of each rank: sums are exact."""
        rows = np.random.default_rng([ranks, size, *seed]).integers(-1000, 1001, (ranks, size))
        return [*rows.astype(np.float32)]

    def reals(self, ranks: int) -> list[Any]:
        """Return numbers of each rank whose sum depends on the order of adding."""
        return [*np.random.default_rng(ranks).standard_normal((ranks, 1003)).astype(np.float32)]

    def series(self, _size: int, _count: int) -> Any:
        """Return the state of a rank over several sums; None if there is none."""
        return None

    async def sum(self, comm: Comm, vector: Any, _series: Any) -> Any:
        """Return the rank's result."""
        vector = vector.copy()
        await self.scheme(comm, vector)
        return vector

    def fault(self, results: Sequence[Any], inputs: Sequence[Any], _size: int) -> str:
        """Return the error in the ranks' results; empty if there is none."""
        expected = np.sum(inputs, axis=0)
        wrong = [rank for rank, vector in enumerate(results) if not np.array_equal(vector, expected)]
        return f"rank {wrong[0]} does not hold the sum" if wrong else ""

    def bits(self, result: Any) -> bytes:
        """Return the bits of a sum."""
        return bytes(result.tobytes())


class _Entries(_Vectors):
    """Sums of entries, of which ranks keep rests."""

    conserved = "sum and rests are the input"

    def sizes(self, _ranks: int) -> Sequence[tuple[int, int]]:
        return (0, 0), (1, 1), (60, 60), (1009, 30)

    def drawn(self, ranks: int, size: int, count: int, *seed: int) -> list[Any]:
        return drawn(ranks, size, count, *seed)

    def reals(self, ranks: int) -> list[Any]:
        return [
            Sparse(part.indices, np.random.default_rng(rank).standard_normal(len(part.values)).astype(np.float32))
            for rank, part in enumerate(drawn(ranks, 1003, 50))
        ]

    def series(self, size: int, count: int) -> Any:
        return Series(size, count)

    async def sum(self, comm: Comm, vector: Any, series: Any) -> Any:
        return await self.scheme(comm, vector, series)

    def fault(self, results: Sequence[Any], inputs: Sequence[Any], size: int) -> str:
        return fault(results, inputs, size)

    def bits(self, result: Any) -> bytes:
        return bytes(result.total.indices.tobytes() + result.total.values.tobytes())


def drawn(ranks: int, size: int, count: int, *seed: int) -> list[Sparse]:
    """Return random entries of each rank, with whole numbers from -1000 to 1000: sums are exact."""
    entries = []
    for rank in range(ranks):
        generator = np.random.default_rng([ranks, size, rank, *seed])
        indices = np.sort(generator.permutation(size)[:count]).astype(np.int32)
        entries.append(Sparse(indices, generator.integers(-1000, 1001, count).astype(np.float32)))
    return entries


def fault(results: Sequence[Reduced], inputs: Sequence[Sparse], size: int) -> str:
    """Return the errors in the ranks' results of one sum of whole numbers; empty if there are none."""
    total = results[0].total
    for rank, reduced in enumerate(results):
        for entries in reduced:
            if entries.indices.dtype != np.int32 or (np.diff(entries.indices) <= 0).any():
                return f"rank {rank}: positions are not rising int32"
        same = np.array_equal(reduced.total.indices, total.indices)
        if not same or reduced.total.values.tobytes() != total.values.tobytes():
            return f"ranks 0 and {rank} have different sums"
    after = dense(total, size).astype(np.float64) + sum(dense(reduced.rest, size) for reduced in results)
    before = np.zeros(size) + sum(dense(entries, size) for entries in inputs)
    wrong = np.flatnonzero(after != before)
    if not len(wrong):
        return ""
    return f"element {wrong[0]}: sum and rests are {after[wrong[0]]:g}, not {before[wrong[0]]:g}"


def _sums(subject: _Vectors) -> str:
    runs = 0
    for ranks in RANKS:
        for size, count in subject.sizes(ranks):
            series = [subject.series(size, count) for _ in range(ranks)]
            for seed in range(SCHEDULES):  # a series uses its state again
                inputs = subject.drawn(ranks, size, count, seed)
                where = f"{ranks} ranks, {count} of {size} elements, schedule {seed}"
                try:
                    results = in_process(ranks, seed).run(partial(_sum, subject, inputs, series))
                except Exception as error:
                    raise BrokenContractError(f"{where}: {type(error).__name__}: {error}") from error
                if wrong := subject.fault(results, inputs, size):
                    raise BrokenContractError(f"{where}: {wrong}")
                runs += 1
    return f"{runs} runs: {len(RANKS)} numbers of ranks from {RANKS[0]} to {RANKS[-1]}, lengths from 0"


def _sum(subject: _Vectors, inputs: Sequence[Any], series: Sequence[Any], comm: Comm) -> Coroutine[Any, Any, Any]:
    return subject.sum(comm, inputs[comm.rank], series[comm.rank])


def _bits(subject: _Vectors) -> str:
    for ranks in (2, 3, 5, 8, 13):
        inputs, bits = subject.reals(ranks), set[bytes]()
        for seed in range(SCHEDULES):
            series = [subject.series(1003, 50) for _ in range(ranks)]
            results = in_process(ranks, seed).run(partial(_sum, subject, inputs, series))
            bits |= set(map(subject.bits, results))
        if len(bits) > 1:
            raise BrokenContractError(f"{ranks} ranks: sums differ by their last bits between ranks or schedules")
    return f"{SCHEDULES} schedules of 2 to 13 ranks"


def _several(subject: _Vectors) -> str:
    async def pieces(comm: Comm) -> list[Any]:
        calls = [
            subject.sum(comm, piece[comm.rank], subject.series(size, size // 3))
            for piece, size in zip(inputs, PIECES, strict=True)
        ]
        tasks = [comm.start(call) for call in calls[:-1]]
        last = await calls[-1]
        return [*reversed([await task for task in reversed(tasks)]), last]

    for ranks in (2, 3, 5, 8):
        inputs = [subject.drawn(ranks, size, size // 3) for size in PIECES]
        for seed in range(SCHEDULES):
            results = in_process(ranks, seed).run(pieces)
            for number, size in enumerate(PIECES):
                if wrong := subject.fault([result[number] for result in results], inputs[number], size):
                    raise BrokenContractError(
                        f"{ranks} ranks, schedule {seed}, piece {number} of {len(PIECES)}: {wrong}"
                    )
    return "four pieces of a vector, joined in another order"


def _parts(subject: _Vectors) -> str:
    inputs = subject.drawn(9, 50, 20)

    async def program(comm: Comm) -> Any:
        part = await comm.split(comm.rank % 4, -comm.rank)
        return await subject.sum(part, inputs[comm.rank], subject.series(50, 20))

    results = in_process(9, 1).run(program)
    for group in range(4):
        if wrong := subject.fault(results[group::4], inputs[group::4], 50):
            raise BrokenContractError(f"group {group} of 4 of 9 ranks: {wrong}")
    return "four groups of 9 ranks"


def _on_row(scheme: Scheme, rows: Array, comm: Comm) -> Coroutine[Any, Any, None]:
    return scheme(comm, rows[comm.rank])


def _volume(scheme: Scheme) -> str:
    stated = {line: formula for line, formula in cost.costs(scheme).items() if not line.startswith("Time")}
    kinds = Counter(line.partition(", ")[0] for line in stated)
    missing = {"Messages", "Bytes"} - kinds.keys()
    if missing:
        example = "Messages, busiest rank: 2*(p - 1)"
        raise BrokenContractError(
            f"the docstring states no {' and no '.join(sorted(missing))}, such as {example!r}"
        )
    for ranks in RANKS:
        world, vector = in_process(ranks), np.zeros((ranks, PER_RANK * ranks), np.float32)
        world.run(partial(_on_row, scheme, vector))
        sent = {"Messages": world.messages, "Bytes": world.bytes}
        for line, formula in stated.items():
            what, _, which = line.partition(", ")
            total = sum if which == "all ranks" else max
            counted, claimed = total(sent[what]), cost.cost(formula, ranks, vector[0].nbytes)
            if abs(counted - claimed) > 1e-9 * claimed:
                raise BrokenContractError(f"{line}: {formula} is {claimed:g} on {ranks} ranks, counted: {counted}")
    return f"{len(stated)} formulas, {RANKS[-1]} ranks at most"


def _time(scheme: Scheme) -> str:
    link, compared = NETWORK.link, 0
    for ranks in RANKS:
        vector = phantom(PER_RANK * ranks)
        stated = cost.time(scheme, ranks, vector.nbytes, link.alpha, link.beta, NETWORK.gamma)
        if stated is None:
            continue
        world = simulated(ranks, NETWORK)
        world.run(lambda comm, vector=vector: scheme(comm, vector))  # type: ignore[misc]
        compared += 1
        if abs(world.now - stated) > 1e-9 * stated:
            raise BrokenContractError(f"{ranks} ranks: stated {stated:.4g} s, simulated {world.now:.4g} s")
    if not compared:
        raise BrokenContractError("the docstring states no time, such as 'Time: 2*(p - 1)*(alpha + n/p*beta)'")
    return f"{compared} numbers of ranks on {NETWORK.name}"


def _symmetry(scheme: Scheme, traits: Aggregation) -> str:
    for ranks in RANKS:
        for length, per_host in ((PER_RANK * ranks, 1), (PER_RANK * ranks, 2), (1009, 1), (3, 1)):
            network = NETWORK.on(per_host)
            operation = Operation("allreduce", partial(scheme), traits.sides, ranks, length, "float32")
            simulation, world = operation.simulate(network), simulated(ranks, network)
            world.run(operation)
            if abs(simulation.seconds - world.now) > 1e-9 * world.now:
                where = f"{ranks} ranks, {per_host} per host, {length} elements"
                times = f"{simulation.seconds:.4g} s instead of {world.now:.4g} s"
                raise BrokenContractError(f"{where}: {simulation.simulated_ranks} stand for all: {times}")
    return f"{RANKS[-1]} ranks at most"
