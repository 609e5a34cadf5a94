"""``kind = "pairwise"``: ranks exchange messages two by two, through the fabric or past it.

``exchange``: ``fabric`` is :meth:`Comm.exchange`, ``raw`` is mpi4py's Sendrecv with nothing in between.
Their difference is the cost of the fabric. ``pattern``: ``pair`` is ranks 0 and 1, ``all_pairs``
every two ranks in rounds without conflict, ``bisection`` one half with the other, all at once; ``random_pairs``
all ranks at once in several random matchings (effective bisection bandwidth: Hoefler, Schneider & Lumsdaine 2008);
``incast``, ``congestor`` and ``message_rate``: :mod:`hpcdl.cases.measuring.patterns`. With
``confirm = 2`` pairs of hosts that take longer are measured twice (:mod:`hpcdl.cases.measuring.confirmation`).
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from hpcdl.cases.keys.checks import Check, too_large
from hpcdl.cases.keys.key import MAX_RANKS, MAX_REPETITIONS, MAX_THREADS, key
from hpcdl.cases.measuring.confirmation import Times, confirmed, hosts_of_ranks, median_ns
from hpcdl.cases.measuring.patterns import PATTERNS, agreed
from hpcdl.fabric.comm import LIBRARY_CALLS, Comm
from hpcdl.fabric.pairs import rounds
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.journal import Journal

CALLED: Final = {
    "pair": "exchange",
    "all_pairs": "exchange of all pairs",
    "bisection": "exchange between halves",
    "random_pairs": "exchange of random pairs",
    "incast": "incast to rank 0",
    "congestor": "allreduce beside bulk traffic",
    "message_rate": "many messages between halves",
}
"""Name in the report, by pattern."""


@dataclass(frozen=True, kw_only=True)
class PairwiseSpec:
    """Keys of an exchange."""

    exchange: str = key("fabric", choices=("fabric", "raw"), role="method", column="aggregation")
    message_bytes: int = key(least=0, role="problem")
    ranks: int = key(2, least=2, most=MAX_RANKS, role="scale")
    pattern: str = key("pair", choices=tuple(CALLED), role="problem")
    repetitions: int = key(1000, least=1, most=MAX_REPETITIONS, role="sampling")
    warmup: int = key(100, least=0, most=MAX_REPETITIONS, role="sampling")
    confirm: int = key(1, least=1, most=9, role="sampling")
    matchings: int = key(10, least=1, most=1000, role="sampling")
    window: int = key(64, least=1, most=1024, role="problem")
    threads: int = key(1, least=1, most=MAX_THREADS, role="problem", column="threads_per_rank")
    trace: str = key("steps", choices=("events", "steps"))


SPEC: Final = PairwiseSpec

LEAST_CONGESTED: Final = 4
"""Ranks of a congestor, at the least."""


def memory_bytes(spec: PairwiseSpec) -> int:
    """See :class:`hpcdl.suite.Kind`: one message goes, one comes, and which bytes of it are right."""
    messages = {"incast": spec.ranks + 1, "message_rate": spec.window + 1}
    return messages.get(spec.pattern, 3) * spec.message_bytes


CHECKS: Final = (
    Check(
        "ranks",
        lambda case: case.pattern == "pair" and case.ranks != 2,
        "a pair has 2, not {ranks}; pattern = 'all_pairs' or 'bisection' takes more",
    ),
    Check(
        "ranks",
        lambda case: case.pattern in {"bisection", "message_rate"} and case.ranks % 2,
        "{ranks} ranks have no two equal halves",
    ),
    Check(
        "ranks",
        lambda case: case.pattern == "congestor" and case.ranks < LEAST_CONGESTED,
        f"a congestor needs {LEAST_CONGESTED}: two that sum, and two that disturb them",
    ),
    Check(
        "message_bytes",
        lambda case: case.pattern in {"incast", "congestor"} and case.message_bytes < 1,
        "{pattern} has messages of at least 1 byte",
    ),
    Check(
        "exchange",
        lambda case: case.pattern in PATTERNS and case.exchange == "raw",
        "{pattern} goes through the fabric; raw is for exchanges of two ranks",
    ),
    Check(
        "confirm",
        lambda case: case.confirm > 1 and case.pattern not in {"all_pairs", "bisection"},
        "pattern {pattern!r} compares no pairs; measure again with all_pairs",
    ),
    Check("message_bytes", lambda case: too_large(memory_bytes(case.spec)), "{message_bytes} to a rank: {wrong}"),
)
"""Checks of an exchange, in order."""


def identity(spec: PairwiseSpec) -> list[str]:
    words = [] if spec.pattern == "pair" else [spec.pattern, f"p{spec.ranks}"]
    return ["exchange", spec.exchange, *words, f"{spec.message_bytes}B"]


def fields(spec: PairwiseSpec) -> dict[str, Scalar]:
    # a congestor is warmed up in both halves of its steps, which no reader mixes
    turns = 1 if spec.pattern in PATTERNS else len(rounds(spec.ranks, spec.pattern, spec.matchings))
    return {
        "collective": CALLED[spec.pattern],
        "pattern": spec.pattern,
        "aggregation": spec.exchange,
        "message_bytes": spec.message_bytes,
        "dtype": "uint8",
        "threads_per_rank": spec.threads,
        "warmup_steps": spec.warmup * turns,
    }


class Exchanges:
    """Exchanges of a rank with one other at a time, through the fabric or past it."""

    def __init__(self, comm: Comm, size: int, *, raw: bool) -> None:
        self.comm = comm
        self.correct = True
        """False once a message was wrong."""
        self._outgoing = np.full(size, comm.rank % 256, np.uint8)
        self._incoming = np.empty(size, np.uint8)
        self._sendrecv = comm.library.Sendrecv if raw else None  # type: ignore[attr-defined] # MPI's alone

    async def spans(self, peer: int | None, repetitions: int) -> list[tuple[int, int]]:
        """Return begin and end (ns) of each exchange with ``peer``; of no length without one."""
        outgoing, incoming, sendrecv, spans = self._outgoing, self._incoming, self._sendrecv, []
        await self.comm.native("barrier", outgoing)
        incoming[:] = self.comm.rank % 256
        for _ in range(repetitions):
            begin = perf_counter_ns()
            if peer is None:
                pass  # a rank that rests has steps of no length, so that all ranks count alike
            elif sendrecv is not None:
                sendrecv(outgoing, peer, 0, incoming, peer, 0)
            else:
                await self.comm.exchange(outgoing, peer, incoming, peer)
            spans.append((begin, perf_counter_ns()))
        if peer is not None and repetitions:
            self.correct &= bool((incoming == peer % 256).all())
        return spans


LIBRARY_CALLS[Exchanges.spans.__code__] = lambda local: (
    "" if local.get("peer") is None else f"Sendrecv with rank {local['peer']}"
)


def program(spec: PairwiseSpec, journal: Journal) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    size = spec.message_bytes
    if spec.pattern in PATTERNS:
        window = {"window": spec.window} if spec.pattern == "message_rate" else {}
        sampling = {"repetitions": spec.repetitions, "warmup": spec.warmup}
        return partial(PATTERNS[spec.pattern], journal=journal, size=size, **sampling, **window)

    async def measure(comm: Comm) -> dict[str, Scalar]:
        exchanges = Exchanges(comm, size, raw=spec.exchange == "raw")
        table, seconds = rounds(comm.size, spec.pattern, spec.matchings), np.zeros(comm.size, np.int64)
        peers = [partners[comm.rank] for partners in table]
        warm = [span for peer in peers for span in await exchanges.spans(peer, spec.warmup)]
        timed = []
        for peer in peers:
            timed += (spans := await exchanges.spans(peer, spec.repetitions))
            if peer is not None:
                seconds[peer] = median_ns(spans)
        messages = int(any(peer is not None for peer in peers))
        journal.repetitions(warm + timed, messages, size * messages)
        described: dict[str, Scalar] = {}
        if spec.confirm > 1:
            first, hosts = await _slower(comm, seconds), np.array(await hosts_of_ranks(comm))
            first[(hosts[:, None] == hosts).ravel()] = 0
            again = partial(_again, exchanges, spec)
            described["measured_again"] = await confirmed(first, _pairs(table), again, spec.confirm)
        return {**await agreed(comm, exchanges.correct), **described}

    return measure


def _pairs(table: Sequence[Sequence[int | None]]) -> list[list[int]]:
    """Return the pairs of each round as numbers i x ranks + j, i < j."""
    return [
        [rank * len(partners) + peer for rank, peer in enumerate(partners) if peer is not None and rank < peer]
        for partners in table
    ]


async def _slower(comm: Comm, mine: Times) -> Times:
    """Return the time (ns) of each pair at its slower rank, (p x p,); ``mine``: (p,) of this rank by its peer."""
    times = await comm.allgather_words(mine)
    return np.triu(np.maximum(times, times.T)).ravel()


async def _again(exchanges: Exchanges, spec: PairwiseSpec, pairs: Sequence[int]) -> Times:
    """Measure ``pairs``, which have no rank in common, at the same time; return (p x p,) times (ns)."""
    comm = exchanges.comm
    ranks = [divmod(pair, comm.size) for pair in pairs]
    partners = {rank: peer for pair in ranks for rank, peer in (pair, pair[::-1])}
    peer, mine = partners.get(comm.rank), np.zeros(comm.size, np.int64)
    await exchanges.spans(peer, spec.warmup)
    spans = await exchanges.spans(peer, spec.repetitions)
    if peer is not None:
        mine[peer] = median_ns(spans)
    return await _slower(comm, mine)
