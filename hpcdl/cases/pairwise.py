"""``kind = "pairwise"``: ranks exchange messages two by two, through the fabric or past it.

``exchange``: ``fabric`` is :meth:`Comm.exchange`, ``raw`` is mpi4py's Sendrecv with nothing in between.
Their difference is the cost of the fabric. ``pattern``: ``pair`` is ranks 0 and 1, ``all_pairs``
every two ranks in rounds without conflict, ``bisection`` one half with the other, all at once; ``random_pairs``
all ranks at once in several random matchings (effective bisection bandwidth: Hoefler, Schneider & Lumsdaine 2008);
``incast``: many ranks send to one, ``message_rate``: many messages are under way, ``congestor``: bulk traffic
disturbs an allreduce. With ``confirm = 2`` pairs of hosts that take longer are measured twice
(:mod:`hpcdl.cases.parts.measuring`).
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from hpcdl.cases.keys.checks import Check, too_large
from hpcdl.cases.keys.key import MAX_RANKS, MAX_REPETITIONS, MAX_THREADS, key
from hpcdl.cases.parts.measuring import Times, confirmed, hosts_of_ranks, median_ns
from hpcdl.fabric.comm import LIBRARY_CALLS, Comm
from hpcdl.fabric.pairs import rounds
from hpcdl.fabric.task import join
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.journal import Journal

VICTIM_BYTES: Final = 8
"""Of the allreduce that bulk traffic disturbs: latency counts (Chunduri et al. 2019, GPCNeT)."""


async def incast(comm: Comm, journal: Journal, size: int, repetitions: int, warmup: int) -> dict[str, Scalar]:
    """All other ranks send ``size`` bytes to rank 0 at once; rank 0's step ends with the last message.

    The record has Jain's fairness index of the senders' rates at rank 0, the median over repetitions.
    """
    senders = range(1, comm.size)
    mine, spans, indices, correct = np.full(size, comm.rank % 256, np.uint8), list[tuple[int, int]](), [], True
    inboxes = [np.zeros(size, np.uint8) for _ in senders] if comm.rank == 0 else []

    async def received(peer: int) -> int:
        await comm.recv(inboxes[peer - 1], peer)
        return perf_counter_ns()

    for _ in range(warmup + repetitions):
        for inbox in inboxes:
            inbox[:] = 0
        await comm.native("barrier", mine)
        begin = perf_counter_ns()
        if comm.rank:
            await comm.send(mine, 0)
        else:
            tasks = [comm.start(received(peer), shared_tags=True) for peer in senders]
            rates = [size / max(1, await task - begin) for task in tasks]
            indices.append(sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates)))
        spans.append((begin, perf_counter_ns()))
        correct &= all((inbox == peer % 256).all() for peer, inbox in zip(senders, inboxes, strict=False))
    sent = int(comm.rank > 0)
    journal.repetitions(spans, sent, sent * size)
    fairness = float(np.median(indices[warmup:])) if indices else None
    return {"fairness": fairness, **await agreed(comm, correct)}


async def message_rate(
    comm: Comm, journal: Journal, size: int, repetitions: int, warmup: int, window: int
) -> dict[str, Scalar]:
    """Each rank of the lower half sends ``window`` messages to one of the upper half, which answers the last one.

    As osu_mbw_mr of the OSU micro-benchmarks; a step is a window with its answer.
    """
    half = comm.size // 2
    peer, sends = (comm.rank + half) % comm.size, comm.rank < half
    messages = [np.full(size, number % 256 if sends else 255, np.uint8) for number in range(window)]
    answer, spans, correct = np.zeros(4, np.uint8), list[tuple[int, int]](), True
    for _ in range(warmup + repetitions):
        await comm.native("barrier", answer)
        begin = perf_counter_ns()
        if sends:
            await join([comm.start(comm.send(message, peer)) for message in messages])
            await comm.recv(answer, peer)
        else:
            await join([comm.start(comm.recv(message, peer)) for message in messages])
            await comm.send(answer, peer)
        spans.append((begin, perf_counter_ns()))
    if size and not sends:
        correct = all(message[-1] == number % 256 for number, message in enumerate(messages))
    count = window if sends else 1
    journal.repetitions(spans, count, count * size if sends else len(answer))
    return await agreed(comm, correct)


async def congestor(comm: Comm, journal: Journal, size: int, repetitions: int, warmup: int) -> dict[str, Scalar]:
    """Time an allreduce of the even ranks alone, and while the odd ranks exchange ``size`` bytes in pairs.

    Steps are those of the latter. The record has median and 99th percentile of both, over repetitions, each of its
    slowest rank.
    """
    flag, words = np.zeros(1, np.uint8), np.zeros(VICTIM_BYTES // 8)
    group = await comm.subcommunicator(lambda rank: rank % 2, "victims and congestors")
    congestors = range(1, comm.size, 2)
    spans = list[tuple[int, int]]()

    async def victim() -> None:
        for _ in range(warmup + repetitions):
            await group.native("barrier", words)
            begin = perf_counter_ns()
            await group.native("allreduce", words)
            spans.append((begin, perf_counter_ns()))

    if comm.rank % 2:
        await comm.recv(flag, 0)  # the victims are alone until then; a library's barrier would spin
        sent = await _disturb(comm, group, size)
        spans = [(0, 0)] * 2 * (warmup + repetitions)
    else:
        await victim()
        if comm.rank == 0:
            for peer in congestors:
                await comm.send(flag, peer)
            for peer in congestors:
                await comm.recv(flag, peer)  # it sends
        await victim()
        await group.native("barrier", words)
        if comm.rank == 0:
            for peer in congestors:
                await comm.send(flag, peer)
        sent = 0
    journal.repetitions(spans[warmup + repetitions :], sent, sent * size)
    times = await comm.allgather_words(np.array([end - begin for begin, end in spans]))
    alone, beside = np.split(times.max(axis=0) * 1e-9, 2)
    return {
        f"{name}_p{quantile}_seconds": float(np.quantile(part[warmup:], quantile / 100))
        for name, part in (("alone", alone), ("beside", beside))
        for quantile in (50, 99)
    }


async def _disturb(comm: Comm, group: Comm, size: int) -> int:
    """Exchange messages with another congestor until rank 0 ends it; return their number.

    The first byte of each message says whether its rank has been told to end: both ends of a pair see both bytes,
    and leave after the same exchange.
    """
    flag = np.zeros(1, np.uint8)
    half = group.size // 2
    peer = (group.rank + half) % (2 * half) if group.rank < 2 * half else None  # of an odd number one rests
    outgoing, incoming = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    count = 0
    if peer is not None:
        await group.exchange(outgoing, peer, incoming, peer)
        count = 1
    await comm.send(flag, 0)
    end = comm.start(comm.recv(flag, 0), shared_tags=True)
    while peer is not None and not (outgoing[0] or incoming[0]):
        outgoing[0] = end.done
        await group.exchange(outgoing, peer, incoming, peer)
        count += 1
    await end
    return count


async def agreed(comm: Comm, correct: bool) -> dict[str, Scalar]:
    """Return whether the messages of all ranks were right."""
    wrong = np.array([not correct], np.float64)
    await comm.native("allreduce", wrong)
    return {"correct": not wrong[0]}


Pattern = Callable[..., Coroutine[Any, Any, dict[str, Scalar]]]
PATTERNS: Final[dict[str, Pattern]] = {"incast": incast, "congestor": congestor, "message_rate": message_rate}
"""Programs of patterns that are not exchanges of two ranks at a time."""

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
