"""Contract of an aggregation scheme, checked on ranks of one process: sums, bits, deadlocks, stated costs."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hpcdl.aggregation.parts import cost
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.fabric.virtual.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from hpcdl.aggregation.parts.traits import Aggregation
    from hpcdl.fabric.comm import Array, Comm

    Scheme = Callable[[Comm, Array], Coroutine[Any, Any, None]]


RANKS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17)
"""Powers of two, their neighbours and primes."""
SCHEDULES: Final = 5
"""Random orders in which the ranks take turns, for each number of ranks and length."""
PER_RANK: Final = 64
"""Elements per rank in the cost check, so that every chunk has the same length."""
NETWORK: Final = NETWORKS["ethernet-10g"]
"""Network of the cost check: alpha, beta and gamma all differ from 0."""


class Check(NamedTuple):
    """Result of one check."""

    holds: bool
    what: str
    detail: str


def lengths(ranks: int) -> list[int]:
    """Return awkward lengths of a vector: 0, around the number of ranks, and a prime."""
    return sorted({0, 1, ranks - 1, ranks, ranks + 1, 1009})


def check_scheme(scheme: Scheme, traits: Aggregation) -> Iterator[Check]:
    """Yield the result of each check of ``scheme``, an ``async def`` over a communicator and a vector.

    A scheme whose messages a library or another scheme decides states no cost.
    """
    checks: list[tuple[str, Callable[[Scheme], str]]] = [
        ("exact sums", _sums),
        ("equal bits on all ranks", _bits),
        ("several at once", _several),
        ("sub-communicators", _parts),
    ]
    if not (traits.native or traits.adaptive):
        checks += [("messages and bytes as stated", _volume), ("simulated time as stated", _time)]
    yield from results(checks, scheme)


def results(checks: Iterable[tuple[str, Callable[[Any], str]]], scheme: Callable[..., Any]) -> Iterator[Check]:
    """Yield the result of each check of ``scheme``, which returns a detail or raises an exception."""
    for what, check in checks:
        try:
            yield Check(holds=True, what=what, detail=check(scheme))
        except Exception as error:  # noqa: BLE001 - the scheme is a user's and may raise anything
            reason = str(error) if isinstance(error, BrokenContractError) else f"{type(error).__name__}: {error}"
            yield Check(holds=False, what=what, detail=reason)


class BrokenContractError(Exception):
    """A check found a difference; the message has its place."""


def _sums(scheme: Scheme) -> str:
    runs = 0
    for ranks in RANKS:
        for length in lengths(ranks):
            rows = np.random.default_rng([ranks, length]).integers(-1000, 1001, (ranks, length)).astype(np.float32)
            for seed in range(SCHEDULES):
                _check_sum(scheme, rows, seed)
                runs += 1
    return f"{runs} runs: {len(RANKS)} numbers of ranks from {RANKS[0]} to {RANKS[-1]}, lengths from 0"


def _check_sum(scheme: Scheme, rows: Array, seed: int) -> None:
    vectors = rows.copy()
    where = f"{len(rows)} ranks, {rows.shape[1]} elements, schedule {seed}"
    try:
        in_process(len(rows), seed).run(lambda comm: scheme(comm, vectors[comm.rank]))
    except Exception as error:
        raise BrokenContractError(f"{where}: {type(error).__name__}: {error}") from error
    wrong = [rank for rank, vector in enumerate(vectors) if not np.array_equal(vector, rows.sum(axis=0))]
    if wrong:
        raise BrokenContractError(f"{where}: rank {wrong[0]} does not hold the sum")


def _bits(scheme: Scheme) -> str:
    for ranks in (2, 3, 5, 8, 13):
        rows = np.random.default_rng(ranks).standard_normal((ranks, 1003)).astype(np.float32)
        runs = np.stack([rows] * SCHEDULES)
        for seed, vectors in enumerate(runs):
            in_process(ranks, seed).run(partial(_on_row, scheme, vectors))
        bits = runs.view(np.uint32)
        if not (bits == bits[0, 0]).all():
            raise BrokenContractError(f"{ranks} ranks: sums differ by their last bits between ranks or schedules")
    return f"{SCHEDULES} schedules of 2 to 13 ranks"


def _on_row(scheme: Scheme, rows: Array, comm: Comm) -> Coroutine[Any, Any, None]:
    return scheme(comm, rows[comm.rank])


def _several(scheme: Scheme) -> str:
    async def pieces(comm: Comm) -> None:
        mine = rows[comm.rank]
        tasks = [comm.start(scheme(comm, piece)) for piece in (mine[:1], mine[1:300], mine[300:302])]
        await scheme(comm, mine[302:])
        for task in reversed(tasks):
            await task

    for ranks in (2, 3, 5, 8):
        for seed in range(SCHEDULES):
            rows = np.arange(ranks * 1000, dtype=np.float32).reshape(ranks, 1000) % 97
            expected = rows.sum(axis=0)
            in_process(ranks, seed).run(pieces)
            if not (rows == expected).all():
                raise BrokenContractError(f"{ranks} ranks, schedule {seed}: pieces of one vector get mixed up")
    return "four pieces of a vector, joined in another order"


def _parts(scheme: Scheme) -> str:
    rows = np.arange(9 * 50, dtype=np.float32).reshape(9, 50) % 53
    expected = np.array([rows[rank % 4 :: 4].sum(axis=0) for rank in range(9)])

    async def program(comm: Comm) -> None:
        await scheme(await comm.split(comm.rank % 4, -comm.rank), rows[comm.rank])

    in_process(9, 1).run(program)
    if not (rows == expected).all():
        raise BrokenContractError("four groups of 9 ranks: a group does not hold its own sum")
    return "four groups of 9 ranks"


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
