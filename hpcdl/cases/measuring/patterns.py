"""Patterns under load: many ranks send to one, many messages are under way, bulk traffic disturbs an allreduce."""

from collections.abc import Callable, Coroutine
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from hpcdl.fabric.comm import Comm
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
