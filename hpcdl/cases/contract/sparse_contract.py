"""Contract of a sparse scheme, checked on ranks of one process: no part lost, equal bits, no deadlock.

See :mod:`hpcdl.aggregation.parts.entries`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.aggregation.parts.entries import Series, dense
from hpcdl.cases.contract.scheme_contract import RANKS, SCHEDULES, BrokenContractError, Check, results
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.virtual.inprocess import in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from hpcdl.aggregation.parts.entries import Reduced
    from hpcdl.fabric.comm import Comm

    SparseScheme = Callable[..., Coroutine[Any, Any, Reduced]]


LENGTHS: Final = ((0, 0), (1, 1), (60, 60), (1009, 30))
"""Elements of a vector, and entries of each rank."""
SUMS: Final = 3
"""Sums of a series, in which a scheme uses its state again; each with another schedule."""


def check_sparse_scheme(scheme: SparseScheme) -> Iterator[Check]:
    """Yield the result of each check of ``scheme``, an ``async def`` over a communicator, entries and a series."""
    checks: list[tuple[str, Callable[[SparseScheme], str]]] = [
        ("sum and rests are the input", _conservation),
        ("equal bits on all ranks", _bits),
        ("several at once", _several),
        ("sub-communicators", _parts),
    ]
    yield from results(checks, scheme)


def drawn(ranks: int, size: int, count: int, *seed: int) -> list[Sparse]:
    """Return random entries of each rank, with whole numbers from -1000 to 1000: sums are exact."""
    found = []
    for rank in range(ranks):
        generator = np.random.default_rng([ranks, size, rank, *seed])
        indices = np.sort(generator.permutation(size)[:count]).astype(np.int32)
        found.append(Sparse(indices, generator.integers(-1000, 1001, count).astype(np.float32)))
    return found


def fault(found: Sequence[Reduced], given: Sequence[Sparse], size: int) -> str:
    """Return the errors in the ranks' results of one sum of whole numbers; empty if there are none."""
    total = found[0].total
    for rank, one in enumerate(found):
        for entries in one:
            if entries.indices.dtype != np.int32 or (np.diff(entries.indices) <= 0).any():
                return f"rank {rank}: positions are not rising int32"
        same = np.array_equal(one.total.indices, total.indices)
        if not same or one.total.values.tobytes() != total.values.tobytes():
            return f"ranks 0 and {rank} have different sums"
    after = dense(total, size).astype(np.float64) + sum(dense(one.rest, size) for one in found)
    before = np.zeros(size) + sum(dense(one, size) for one in given)
    wrong = np.flatnonzero(after != before)
    return (
        f"element {wrong[0]}: sum and rests are {after[wrong[0]]:g}, not {before[wrong[0]]:g}"
        if len(wrong)
        else ""
    )


def _conservation(scheme: SparseScheme) -> str:
    runs = 0
    for ranks in RANKS:
        for size, count in LENGTHS:
            series = [Series(size, count) for _ in range(ranks)]
            for step in range(SUMS):
                given = drawn(ranks, size, count, step)
                where = f"{ranks} ranks, {count} of {size} elements, sum {step}"
                try:
                    found = in_process(ranks, step).run(partial(_sum, scheme, given, series))
                except Exception as error:
                    raise BrokenContractError(f"{where}: {type(error).__name__}: {error}") from error
                if wrong := fault(found, given, size):
                    raise BrokenContractError(f"{where}: {wrong}")
                runs += 1
    return f"{runs} runs: {len(RANKS)} numbers of ranks from {RANKS[0]} to {RANKS[-1]}, lengths from 0"


def _sum(
    scheme: SparseScheme, given: Sequence[Sparse], series: Sequence[Series], comm: Comm
) -> Coroutine[Any, Any, Reduced]:
    return scheme(comm, given[comm.rank], series[comm.rank])


def _bits(scheme: SparseScheme) -> str:
    for ranks in (2, 3, 5, 8, 13):
        given = [
            Sparse(one.indices, np.random.default_rng(rank).standard_normal(len(one.values)).astype(np.float32))
            for rank, one in enumerate(drawn(ranks, 1003, 50))
        ]
        sums = set()
        for seed in range(SCHEDULES):
            series = [Series(1003, 50) for _ in range(ranks)]
            found = in_process(ranks, seed).run(partial(_sum, scheme, given, series))
            sums |= {(one.total.indices.tobytes(), one.total.values.tobytes()) for one in found}
        if len(sums) > 1:
            raise BrokenContractError(f"{ranks} ranks: sums differ by their last bits between ranks or schedules")
    return f"{SCHEDULES} schedules of 2 to 13 ranks"


def _several(scheme: SparseScheme) -> str:
    sizes = (1, 300, 2, 700)

    async def pieces(comm: Comm) -> list[Reduced]:
        calls = [
            scheme(comm, one[comm.rank], Series(size, size // 3)) for one, size in zip(given, sizes, strict=True)
        ]
        tasks = [comm.start(call) for call in calls[:-1]]
        last = await calls[-1]
        return [*reversed([await task for task in reversed(tasks)]), last]

    for ranks in (2, 3, 5, 8):
        given = [drawn(ranks, size, size // 3) for size in sizes]
        for seed in range(SCHEDULES):
            found = in_process(ranks, seed).run(pieces)
            for piece, size in enumerate(sizes):
                if wrong := fault([one[piece] for one in found], given[piece], size):
                    raise BrokenContractError(
                        f"{ranks} ranks, schedule {seed}, piece {piece} of {len(sizes)}: {wrong}"
                    )
    return "four pieces of a vector, joined in another order"


def _parts(scheme: SparseScheme) -> str:
    given = drawn(9, 50, 20)

    async def program(comm: Comm) -> Reduced:
        return await scheme(await comm.split(comm.rank % 4, -comm.rank), given[comm.rank], Series(50, 20))

    found = in_process(9, 1).run(program)
    for group in range(4):
        if wrong := fault(found[group::4], given[group::4], 50):
            raise BrokenContractError(f"group {group} of 4 of 9 ranks: {wrong}")
    return "four groups of 9 ranks"
