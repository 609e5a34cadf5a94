"""``kind = "collective"``: time a collective by a scheme at a size, and check its results.

With ``network`` it is simulated: size-only payloads, virtual time, any number of ranks in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from time import perf_counter
from typing import Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.traits import (
    ALLTOALLV,
    COLLECTIVES,
    Aggregation,
    offered,
    operand,
    out_of_place_operand,
)
from hpcdl.cases.keys.checks import CHECKED_PAIRS, CLUSTER, Check, Rows, Setup, makes, too_large
from hpcdl.cases.keys.counts import MAX_COUNT, Counts, count_fields, counts_of, totals
from hpcdl.cases.keys.key import MAX_RANKS, MAX_REPETITIONS, MAX_THREADS, Choice, architecture, cluster, key
from hpcdl.cases.keys.scheme import check_library, table_of, traits_of, try_out
from hpcdl.cases.parts.autotune import choose_by_simulation, tune
from hpcdl.cases.parts.measuring import (
    SAME_ON_ALL_RANKS,
    STARTS,
    BlockContents,
    CommonStarts,
    Contents,
    alike,
    from_arrivals,
    reals,
    start,
)
from hpcdl.cases.parts.operations import Operation, blocks, operation
from hpcdl.fabric.comm import INPUT, Array, Comm
from hpcdl.fabric.faults import Delays, Straggler
from hpcdl.fabric.network import NETWORKS, Network, Site
from hpcdl.fabric.vectors import phantom
from hpcdl.nn.backend import Backend, backend
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.journal import Journal


@dataclass(frozen=True, kw_only=True)
class CollectiveSpec:
    """Keys of a collective; properties raise ValueError for settings that cannot be."""

    collective: str = key("allreduce", choices=COLLECTIVES, role="problem")
    aggregation: Choice = key(folder="aggregation", role="method")
    ranks: int = key(least=1, most=MAX_RANKS, role="scale")
    message_bytes: int | str | None = key(None, role="problem")
    counts: Choice = key(Choice("counts", "uniform"), folder="counts", role="problem")
    dtype: str = key("float32", choices=("float32", "float64"), role="problem")
    backend: Choice = key(Choice("backends", "numpy"), folder="backends", role="problem")
    repetitions: int = key(50, least=1, most=MAX_REPETITIONS, role="sampling")
    warmup: int = key(5, least=0, most=MAX_REPETITIONS, role="sampling")
    start: str = key("barrier", choices=STARTS)
    placement: str = key("in_place", choices=("in_place", "out_of_place"))
    network: str | None = key(None, choices=tuple(NETWORKS), role="machine")
    topology: Choice | None = key(None, folder="topologies", around=Site, role="machine")
    ranks_per_host: int = key(1, least=1, most=MAX_RANKS, role="machine")
    straggler: Straggler | None = key(None, table=Straggler)
    threads: int = key(1, least=1, most=MAX_THREADS, role="problem", column="threads_per_rank")
    trace: str = key("steps", choices=("events", "steps"))

    @property
    def kernels(self) -> Backend:
        """The library that has the vectors."""
        return backend(self.backend.name, **self.backend.settings)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(np.dtype(self.dtype).itemsize)

    @cached_property
    def blocks(self) -> Counts | None:
        """Elements that each rank sends to each, (ranks, ranks), of an alltoallv. Raises as :func:`counts_of`."""
        elements = None if self.message_bytes is None else self.length
        return counts_of(self.counts, self.ranks, elements) if self.collective == ALLTOALLV else None

    @property
    def length(self) -> int:
        """Elements of the vector; of an alltoallv of the longest one that a rank sends."""
        size = self.message_bytes
        if size is None:
            return 0 if self.blocks is None else int(self.blocks.sum(axis=1).max())
        return parameters(size) if isinstance(size, str) else size // self.itemsize

    @property
    def size(self) -> int:
        """Bytes of the vector."""
        return self.length * self.itemsize

    @property
    def program(self) -> partial[Coroutine[Any, Any, None]]:
        """The collective with its settings bound. Raises ValueError if the scheme does not have it."""
        return partial(offered(self.collective, self.aggregation.name), **self.aggregation.settings)

    @property
    def cluster(self) -> Network:
        """The network of a simulated case, with its ranks on hosts."""
        return cluster(str(self.network), self.ranks_per_host, self.topology)

    def operation(self, scheme: Choice | None = None) -> Operation:
        """Return the program of the case, by default with its own scheme, on vectors of sizes alone."""
        by = scheme or self.aggregation
        program = operation(self.collective, by.name, by.settings, self.ranks, self.length, self.dtype)
        return replace(program, counts=self.blocks)


SPEC: Final = CollectiveSpec

LOOP_BYTES: Final = 65536
"""Up to this size a time is of a loop of operations, divided by their number, as OSU's benchmarks do:
a single operation is about as long as the ranks' differences in leaving a barrier."""
LOOP_NS: Final = 2_000_000
MAX_LOOP: Final = 200
TRIED_LOOP: Final = 10
"""Operations by whose time the loop is made: a single one follows a check, with cold caches."""
ROOTED: Final = ("broadcast", "reduce")
"""Their ranks could begin the next operation before others end the last: a loop would time a pipeline."""
MAX_COUNTED: Final = 1024
"""Ranks of an alltoallv, at most: they have a million blocks."""
COPIES: Final = 4
"""Vectors of a rank, at the least: its own, random numbers in float64 and in the case's type."""


@cache
def parameters(model: str) -> int:
    """Return the elements of a model's gradient, for images of the size it is made for. Raises ValueError."""
    from hpcdl.nn.volumes import volumes

    shape, layers = architecture(Choice("models", model), None)
    return volumes(layers, shape, 1).parameters


def memory_bytes(spec: CollectiveSpec) -> int:
    """See :class:`hpcdl.suite.Kind`; simulated vectors have no content."""
    longest = spec.length if spec.blocks is None else max(int(sums.max()) for sums in totals(spec.blocks))
    return 0 if spec.network else COPIES * longest * spec.itemsize


def _wrong_size(case: Setup) -> object:
    size = case.message_bytes
    if size is None:
        return case.collective != ALLTOALLV and "a collective case needs it"
    if isinstance(size, str):
        parameters(size)
    elif size < 0:
        return f"must be at least 0, not {size}"
    elif size % case.itemsize:
        return f"{size} is not a multiple of {case.dtype}'s {case.itemsize} bytes"
    operand(case.collective, phantom(case.length, case.dtype), case.ranks)
    return None


def _wrong_counts(case: Setup) -> object:
    if case.collective != ALLTOALLV:
        return "counts" in case.given and f"{case.collective} has parts of one length; only {ALLTOALLV} has counts"
    if case.ranks > MAX_COUNTED:
        return f"{case.ranks} ranks have too many blocks; an {ALLTOALLV} has at most {MAX_COUNTED} ranks"
    if case.message_bytes is not None and "path" in case.counts.settings:
        return "the file states all bytes; leave message_bytes out"
    most = max(int(sums.max()) for sums in totals(case.blocks))
    return most > MAX_COUNT and f"a rank sends or receives {most} elements; MPI's counts are at most {MAX_COUNT}"


CHECKS: Final[Rows] = (
    Check("message_bytes", _wrong_size, of="ranks"),
    Check("counts", _wrong_counts),
    makes("backend", "kernels"),
    *CHECKED_PAIRS,
    *CLUSTER,
    Check("straggler", lambda case: case.straggler.check(case.ranks)),
    Check(
        "straggler: factor",
        lambda case: case.straggler.factor > 1,
        "a collective has no work to slow; give seconds",
    ),
    Check(
        "straggler: at",
        lambda case: case.straggler.at != INPUT,
        "a collective has no work to pause before; leave it out",
    ),
    Check("aggregation", lambda case: check_library(case.aggregation, case.network)),
    Check("aggregation", lambda case: registry.check_settings(case.program.func, case.program.keywords)),
    Check("aggregation", lambda case: try_out(case.aggregation, case.ranks, case.collective)),
    Check("ranks", lambda case: case.operation().check(case.cluster), of="network"),
    Check(
        "trace",
        lambda case: case.operation().check(case.cluster, traced=True) if case.trace == "events" else None,
        of="network",
    ),
    Check("message_bytes", lambda case: too_large(memory_bytes(case.spec)), "{size} on a rank: {wrong}"),
)
"""Checks of a collective, in order."""


def identity(spec: CollectiveSpec) -> list[str]:
    size = spec.message_bytes
    words = [spec.collective, str(spec.aggregation), f"p{spec.ranks}"]
    if size is None:
        return [*words, str(spec.counts)]
    return [*words, size if isinstance(size, str) else f"{size}B"]


def fields(spec: CollectiveSpec) -> dict[str, Scalar]:
    size = spec.message_bytes
    simulated = spec.network is not None
    return {
        "collective": spec.collective,
        "aggregation": str(spec.aggregation),
        "message_bytes": spec.size,
        "model": size if isinstance(size, str) else None,
        "dtype": spec.dtype,
        "backend": None if simulated else str(spec.backend),
        "threads_per_rank": spec.threads,
        "network": spec.network,
        **({"ranks_per_host": spec.ranks_per_host} if simulated else {}),
        "start": None if simulated else spec.start,
        "placement": None if simulated or spec.blocks is not None else spec.placement,
        **(spec.straggler.fields if spec.straggler else {}),
        **({} if spec.blocks is None else count_fields(spec.counts, spec.blocks, spec.itemsize)),
        "warmup_steps": 0 if simulated else spec.warmup,
    }


def program(spec: CollectiveSpec, journal: Journal) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    return partial(_simulate if spec.network else _measure, spec, journal)


async def _measure(spec: CollectiveSpec, journal: Journal, comm: Comm) -> dict[str, Scalar]:
    collective, size, place = spec.collective, spec.length, spec.kernels
    scheme, chosen = await _chosen(spec, journal, comm)
    counts = spec.blocks
    contents = (
        Contents(collective, comm, size, spec.dtype)
        if counts is None
        else BlockContents(counts, comm.rank, spec.dtype)
    )
    # in the host's memory other ranks of the host can map it, which a scheme may make use of
    buffer = (comm.memory.allocate if place.on_host else place.zeros)(len(contents.after), spec.dtype)
    operands = place.asarray(contents.before)
    out_of_place = spec.placement == "out_of_place" or counts is not None
    # a library's own takes operand and result apart
    apart = out_of_place and registry.traits("aggregation", chosen or spec.aggregation.name, Aggregation).native
    copied = out_of_place and not apart and counts is None
    given = operand(collective, buffer, comm.size)
    if counts is not None:
        given = blocks(counts, comm.rank, operands, buffer)
    elif apart:
        given = out_of_place_operand(collective, operands, buffer, comm.size)
    wrong, slow = np.zeros(1), spec.straggler
    delays = Delays(slow, comm.rank, 0, journal.draw) if slow is not None and slow.slows(comm.rank) else None
    beginning = start(spec.start, comm, lambda: journal.read().time_ns)
    times = CommonStarts(beginning, comm, lambda: place.to_host(buffer[:1]), delays)

    async def operations(content: Array, count: int) -> None:
        for _ in range(count):
            if copied:
                buffer[:] = content
            await scheme(comm, given)

    # a rank that receives nothing could begin the next operation, too
    waits = collective not in ROOTED and (counts is None or counts.all())
    is_looped = bool(spec.size <= LOOP_BYTES and waits and slow is None)
    spans, loop, done = list[tuple[int, int]](), 1, 0
    before = journal.read()
    for number in range(spec.warmup + spec.repetitions):
        buffer[:] = 0 if out_of_place else operands
        begin, end = await times.of(operations(operands, 1))
        wrong += not contents.right(place.to_host(buffer))
        if loop > 1:
            buffer[:] = 0  # sums of sums of other numbers would overflow
            begin, end = await times.of(operations(operands, loop))
        done += 1 + loop * (loop > 1)
        spans.append((begin, begin + (end - begin) // loop))
        if is_looped and number + 1 == spec.warmup:
            buffer[:] = 0
            begin, end = await times.of(operations(operands, TRIED_LOOP))
            done += TRIED_LOOP
            slowest = int((await comm.allgather_words(np.array([end - begin]))).max())
            loop = min(max(LOOP_NS * TRIED_LOOP // max(slowest, 1), 1), MAX_LOOP)
    after = journal.read()
    journal.repetitions(spans, (after.messages - before.messages) // done, (after.bytes - before.bytes) // done)
    description = {"operations": loop, **await beginning.description(spec.warmup)}
    if slow is not None:
        description |= await from_arrivals(comm, times.moments[spec.warmup :])
    if out_of_place:
        description["copied"] = copied or collective == "broadcast"  # of which MPI has none with two vectors
    sent_from = operands if apart else buffer
    del contents, operands  # what follows needs as much
    if collective in SAME_ON_ALL_RANKS:
        # sums of whole numbers are exact in any order: only real numbers show if ranks added in different orders
        sent_from[:] = place.asarray(reals(comm.rank, size, spec.dtype))
        await scheme(comm, given)
        description["same_bits"] = await alike(comm, place.to_host(buffer))
    await comm.native("allreduce", wrong)
    return {"correct": not wrong[0], "chosen": chosen, **description}


async def _chosen(
    spec: CollectiveSpec, journal: Journal, comm: Comm
) -> tuple[Callable[..., Coroutine[Any, Any, None]], str | None]:
    if not traits_of(spec.aggregation).adaptive:
        return spec.program, None
    size = spec.size
    table = table_of(spec.aggregation, comm.size)
    choices = await tune(comm, [size], lambda: journal.read().time_ns, dtype=spec.dtype, table=table)
    return choices[size], choices.name(size)


async def _simulate(spec: CollectiveSpec, journal: Journal, _comm: Comm) -> dict[str, Scalar]:
    network, scheme, chosen = spec.cluster, spec.aggregation, None
    if traits_of(scheme).adaptive:
        chosen = choose_by_simulation(spec.ranks, network, [spec.size], spec.dtype).name(spec.size)
        scheme = Choice("aggregation", chosen)
    summed = spec.operation(scheme)
    began = perf_counter()
    journals = journal.of_ranks(spec.ranks)
    events = [each.events for each in journals if each.events is not None]
    simulation = summed.simulate(network, events or None)
    took = perf_counter() - began
    for each in journals:
        each.repetitions([(0, round(simulation.seconds * 1e9))], simulation.messages, simulation.bytes)
    stated = None
    if (link := network.common_link(spec.ranks)) is not None and link.is_plain:  # formulas know one link
        costs = (link.alpha, link.beta, network.gamma)
        stated = cost.time(summed.function.func, spec.ranks, spec.size, *costs, scheme.settings)
    return {
        "simulation_seconds": took,
        "simulated_ranks": simulation.simulated_ranks,
        "nodes": network.hosts_of(spec.ranks),
        "global_bytes": simulation.global_bytes,
        "predicted_seconds": stated,
        "chosen": chosen,
    }
