"""Training in virtual time: the strategy itself, with real gradients or with sizes, all ranks in one process.

With real arithmetic (:func:`simulate`) a seed gives the same training, order of messages and times on any machine.
:func:`virtual_step` repeats one step of sizes, with the costs of encoders, decoders and sums that
:func:`exchange_costs` measures on this machine.
"""

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import iadd
from statistics import median
from time import thread_time
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from hpcdl.aggregation.parts.cost import check_messages
from hpcdl.aggregation.ring import ring
from hpcdl.cases.keys.compute_times import ComputeTimes
from hpcdl.cases.keys.step_spec import SizedSteps, StepSpec
from hpcdl.cases.keys.train_spec import TrainSpec
from hpcdl.cases.parts.operations import by_symmetry, sizes
from hpcdl.compression.parts.protocol import Layout, Tensor
from hpcdl.fabric.comm import INPUT, Array, Comm, Counters, Wrapper
from hpcdl.fabric.faults import Delays, RankFailed, Straggler
from hpcdl.fabric.network import Network
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.fabric.virtual.shifts import Shifts
from hpcdl.fabric.virtual.world import World
from hpcdl.nn.replica import Replica
from hpcdl.trace.recorder import Recorder, Scalar
from hpcdl.training.parts.bucketing import bucket_bytes
from hpcdl.training.parts.compressed import Compressed
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.plan import Plan
from hpcdl.training.parts.session import Session

MAX_ELEMENTS: Final = 4 << 20
"""Elements of the gradient that is exchanged, at most: costs per byte no longer depend on the length."""
EXCHANGING_RANKS: Final = 2
"""Ranks of the measured exchange: the fewest that add."""
EXCHANGES: Final = 6
"""The first compiles kernels, and the median of the others counts."""


@dataclass(eq=False)
class _Timed(Wrapper[Any]):
    """A communicator that measures the arithmetic between messages."""

    _spent: dict[str, list[float]]

    async def apply(self, label: str, work: Callable[[], Any], touched_bytes: int) -> Any:
        def measured() -> Any:
            began = thread_time()
            result = work()
            total = self._spent.setdefault(label, [0.0, 0.0])
            total[0] += thread_time() - began
            total[1] += touched_bytes
            return result

        return await self._comm.apply(label, measured, touched_bytes)

    async def add(self, into: Array, addend: Array) -> None:
        await self.apply("add", partial(iadd, into, addend), into.nbytes)


def exchange_costs(
    plan: Plan | None, aggregate: Callable[..., Any], tensors: Sequence[Tensor]
) -> dict[str, float]:
    """Return the time of each kind of arithmetic, by its label: s per byte that it touches.

    Two ranks in this process exchange normally distributed values in the first ``tensors``, of
    :data:`MAX_ELEMENTS` elements if there are more. Each cost is the median over exchanges, on one core.
    """
    shown = [tensor for tensor in tensors if tensor.span.stop <= MAX_ELEMENTS] or [*tensors[:1]]
    size = shown[-1].span.stop
    if plan is not None and plan.kind == "vectors":
        aggregate = ring  # two ranks may be too few for the case's scheme; the compressor's arithmetic is the same
    gradient = np.random.default_rng(0).standard_normal(size, np.float32)
    layout = Layout(size=size, tensors=shown)

    def vector(_name: str, elements: int = size) -> Array:
        return np.zeros(elements, np.float32)

    sides = [
        Compressed(plan.without_warmup, layout, vector, lambda _step: False) if plan else None
        for _ in range(EXCHANGING_RANKS)
    ]
    measured: dict[str, list[float]] = {}
    for call in range(EXCHANGES):
        spent: dict[str, list[float]] = {}
        vectors = [gradient * np.float32(rank + 1) for rank in range(EXCHANGING_RANKS)]

        async def exchange(comm: Comm) -> None:
            timed, vector, side = _Timed(comm, spent), vectors[comm.rank], sides[comm.rank]  # noqa: B023 - runs now
            if side is None:
                await aggregate(timed, vector)
            else:
                await side.reduce(timed, slice(0, size), vector, aggregate)

        with threadpool_limits(1):
            in_process(EXCHANGING_RANKS).run(exchange)
        for label, (seconds, touched) in spent.items():
            if call and touched:
                measured.setdefault(label, []).append(seconds / touched)
    return {label: median(each) for label, each in measured.items()}


def costs_of(spec: StepSpec) -> dict[str, float]:
    """Return the costs of a case's compressed exchanges; empty if it compresses nothing."""
    if spec.plan is None:
        return {}
    tensors = Replica(spec.layers, spec.shape, backend=sizes()).tensors
    return exchange_costs(spec.plan, spec.aggregation.bind(), tensors)


CYCLES: Final = 4
"""Number of simulated cycles of steps."""

UNSETTLED: Final = 2
"""Number of cycles at the beginning that are not counted, because the first one has no predecessor."""

LATE_SHARE: Final = 0.05
"""Share of the step, as in traces of real ranks (:mod:`hpcdl.analysis.network.waiting`)."""

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Conditions:
    """Network, work and batch of simulated steps of a case."""

    network: Network
    times: ComputeTimes
    images: int
    """Images of a copy of the network, which is on one rank, on a pipeline or on a model group."""
    bucket: int | None = None
    """Smallest size of a bucket (bytes); None if buckets do not depend on the links, within a host."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """Time of arithmetic between messages, by its label (s per byte that it touches); others take gamma."""
    jitter: float = 0.0
    """Coefficient of variation of each rank's computing; recorded times are medians, given ones means."""
    straggler: Straggler | None = None
    draw: int = 0
    """Number of the random compute times and pauses."""


class ComputeTimeModel:
    """Model compute time of the simulated ranks and accumulate totals.

    ``times`` are those of the ranks of a pipeline or of a model group in turn, or one for all ranks.

    The times of a batch, its input being where it begins, vary by a common factor of mean 1 and standard deviation
    ``jitter``, lognormal. Each rank draws from its own random numbers, so that no interleaving changes them.
    """

    def __init__(
        self,
        times: Sequence[ComputeTimes],
        ranks: int,
        *,
        jitter: float = 0.0,
        straggler: Straggler | None = None,
        seed: int = 0,
        draw: int = 0,
    ) -> None:
        self._times = times
        self.sessions: dict[int, Session] = {}
        """By rank; their inputs tell the images of a rank's work, in a model group those of the group."""
        self._deviation = math.sqrt(math.log1p(jitter**2))
        self._random = [np.random.default_rng((seed, rank, draw)) for rank in range(ranks)]
        self._factor = [1.0] * ranks
        slow = [rank for rank in range(ranks) if straggler is not None and straggler.slows(rank)]
        self._delays = {rank: Delays(straggler, rank, seed, draw) for rank in slow if straggler}
        self.compute_seconds = [0.0] * ranks
        self.input_seconds = [0.0] * ranks
        self.delay_seconds = [0.0] * ranks

    def seconds(self, rank: int, label: str) -> float:
        """Return the seconds that ``rank`` now takes for work called ``label``; see
        :func:`hpcdl.fabric.virtual.clocks.simulated`.
        """
        if label == INPUT and self._deviation:
            self._factor[rank] = self._random[rank].lognormal(-(self._deviation**2) / 2, self._deviation)
        images = self.sessions[rank].inputs.group_shares[-1][1]
        seconds = self._factor[rank] * self._times[rank % len(self._times)].seconds(label, images)
        pause = 0.0
        if rank in self._delays:
            longer, pause = self._delays[rank].after(seconds), self._delays[rank].before(label)
            self.delay_seconds[rank] += longer + pause
            seconds += longer
        self.compute_seconds[rank] += pause + seconds
        if label == INPUT:
            self.input_seconds[rank] += seconds
        return pause + seconds


class VirtualStep(NamedTuple):
    """Time and traffic of a step."""

    cycles: npt.NDArray[np.float64]
    """Mean step time of the slowest rank in each cycle that counts (s); empty without a common step."""
    bytes_sent: float
    """By the rank that sends most, mean over steps."""
    bytes_per_host: float
    """Sent to other hosts, mean over hosts and steps; 0 with a topology, whose links are not counted."""
    messages: int
    """Sent by the rank that sends most, in all steps."""
    simulated_ranks: int
    """Number of ranks that stood for all by symmetry; all where there is none."""
    steps: Columns
    """Steps of all ranks: columns of :data:`hpcdl.trace.recorder.STEP`, and their rank."""
    updates: Columns
    """Gradients applied by all ranks: columns of :data:`hpcdl.trace.recorder.UPDATE`, and their rank."""
    unsettled: int
    """Steps at the beginning that do not count."""
    delays: npt.NDArray[np.float64]
    """By which the straggler makes each simulated rank's work longer, mean over steps (s)."""

    @property
    def begins(self) -> list[int]:
        """Begin of the last cycle on each rank, if all were simulated (ns)."""
        cycle = self.unsettled // UNSETTLED
        first = self.steps["step"].max() + 1 - cycle
        return list(self.steps["begin"][self.steps["step"] == first].tolist())

    @property
    def seconds(self) -> float:
        """Median over cycles (s); NaN without a common step."""
        return float(np.median(self.cycles)) if len(self.cycles) else math.nan


def late_rank(delays: npt.NDArray[np.float64], step_seconds: float) -> dict[str, Scalar]:
    """Return as fields the rank whose delay exceeds any other's by :data:`LATE_SHARE` of a step; empty if none."""
    *_, second, longest = np.sort(delays) if len(delays) > 1 else (0.0, 0.0)
    seconds = float(longest - second)
    late = seconds > LATE_SHARE * step_seconds
    return {"late_rank": int(delays.argmax()), "late_seconds": seconds} if late else {}


def virtual_step(
    spec: StepSpec, conditions: Conditions, counted: int = 1, traced: Sequence[Recorder] = ()
) -> VirtualStep:
    """Simulate steps of a case on its ranks, or by symmetry; at least ``counted`` of them count.

    See :func:`hpcdl.cases.parts.operations.by_symmetry`. ``traced``: recorders of all ranks, which get the
    events of the last cycle; all ranks are then simulated. Raises ValueError for too many messages.
    """
    simulate = partial(_simulated_step, spec, conditions, counted, traced)
    common = spec.strategy.lockstep or spec.strategy.periodic  # otherwise the steps of all ranks are asked for
    if common and not (conditions.jitter or conditions.straggler or traced):
        outcome = by_symmetry(spec.ranks, conditions.network, simulate)
        if outcome is not None:
            return outcome[1]
    scheme = spec.aggregation
    check_messages(scheme.find(), spec.ranks // spec.group_ranks, spec.gradient_bytes, scheme.settings)
    return simulate(None)[1]


def _simulated_step(
    spec: StepSpec, conditions: Conditions, counted: int, traced: Sequence[Recorder], grid: Shifts | None
) -> tuple[World, VirtualStep]:
    ranks, times, jitter = spec.ranks, conditions.times, conditions.jitter
    work = ComputeTimeModel(
        # the factors of the model have mean 1; the median of a recorded lognormal is below its mean
        spec.times_of_ranks(times.scaled(math.hypot(1, times.jitter)) if jitter else times, conditions.images),
        ranks,
        jitter=jitter,
        straggler=conditions.straggler,
        draw=conditions.draw,
    )
    cycle = spec.strategy.cycle(spec.training.in_full)
    unsettled = UNSETTLED * cycle
    steps = unsettled + cycle * max(CYCLES - UNSETTLED, -(-counted // cycle))
    costs = {**conditions.costs, **times.update_costs(spec.gradient_bytes, by_ranks=spec.strategy.shards_state)}
    events = [recorder.events for recorder in traced if recorder.events is not None] or None
    world = simulated(ranks, conditions.network, compute=work.seconds, costs=costs, events=events, shifts=grid)
    recorders = {rank: Recorder(events=False) for rank in world.simulated}
    strategy, kernels, sized = spec.training.bind(), sizes(), SizedSteps(conditions.images, steps)

    async def train(comm: Any) -> None:
        def counters() -> Counters:
            return Counters(round(world.running.time * 1e9), 0, 0, 0, 0)

        def keep_last_cycle(step: int) -> None:
            if traced:
                traced[comm.rank].trim()
                if step % cycle == 0:
                    traced[comm.rank].clear_events()

        journal = Journal(recorders[comm.rank], counters, keep_last_cycle)
        session = work.sessions[comm.rank] = await spec.session(comm, journal, kernels, sized=sized)
        session.bucket_bytes = conditions.bucket
        await strategy(comm, session)

    world.run(train)
    packed = [recorder.pack() for recorder in recorders.values()]
    rows, updates = (_columns([rank[name] for rank in packed]) for name in ("steps", "updates"))
    cycles = np.empty(0)
    if spec.strategy.lockstep or spec.strategy.periodic:
        spans = np.array([rank["steps"]["end"] - rank["steps"]["begin"] for rank in packed])[:, unsettled:]
        cycles = spans.reshape(len(recorders), -1, cycle).mean(axis=2).max(axis=0) * 1e-9
    hosts = len({conditions.network.host(rank) for rank in recorders})
    sent, out = max(world.bytes) / steps, world.clock.bytes_between_hosts / (steps * hosts)
    delays = np.array([work.delay_seconds[rank] for rank in recorders]) / steps
    counts = (max(world.messages), len(recorders))
    return world, VirtualStep(cycles, sent, out, *counts, rows, updates, unsettled, delays)


def _columns(tables: Sequence[npt.NDArray[Any]]) -> Columns:
    """Return the columns of the ranks' tables, one after another, and the rank of each row."""
    whole = np.concatenate(tables)
    ranks = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return {"rank": ranks, **{name: whole[name] for name in whole.dtype.names or ()}}


async def simulate(
    spec: TrainSpec,
    train: Callable[[Comm, Session], Coroutine[Any, Any, dict[str, Scalar]]],
    journal: Journal,
    _comm: Comm,
) -> dict[str, Scalar]:
    """Run ``train`` on all ranks of the case in virtual time; return rank 0's findings and the simulation's.

    A training that diverges ends when a compressor meets a value that it cannot send.
    """
    ranks, failure, cluster = spec.ranks, spec.failure, spec.cluster
    work = ComputeTimeModel(
        spec.stage_times, ranks, jitter=spec.jitter, straggler=spec.straggler, seed=spec.seed, draw=journal.draw
    )

    def counters(rank: int) -> Counters:
        now, computed, waited = (
            round(seconds * 1e9)
            for seconds in (world.running.time, work.compute_seconds[rank], work.input_seconds[rank])
        )
        return Counters(now, world.messages[rank], world.bytes[rank], computed, waited)

    failed = list[int]()

    def before_step(rank: int, step: int) -> None:
        if failure is not None and failure.comes(rank, step):
            failed.append(rank)
            raise RankFailed

    journals = [
        journal.virtual(partial(counters, rank), ranks, partial(before_step, rank)) for rank in range(ranks)
    ]
    events = [journal.events for journal in journals if journal.events is not None]
    costs = spec.compute_times.update_costs(spec.gradient_bytes, by_ranks=spec.strategy.shards_state)
    world = simulated(ranks, cluster, compute=work.seconds, costs=costs, events=events or None)
    # a thread for each rank that makes its batches ahead would gain nothing here
    at_once = replace(spec, prefetch=0)

    async def take_part(comm: Comm) -> dict[str, Scalar]:
        session = work.sessions[comm.rank] = await at_once.session(comm, journals[comm.rank], at_once.kernels)
        session.bucket_bytes = bucket_bytes(*cluster.ring_costs(ranks), ranks)
        session.timed_updates = bool(costs)
        return await train(comm, session)

    try:
        first, *_ = world.run(take_part)
    except FloatingPointError:
        first = {}
        # a test without a number is the last one of each rank, after its steps
        samples = sum(int(each.recorder.step_table()["images"].sum()) for each in journals)
        tests = min(len(each.recorder.evaluations) for each in journals)
        for each in journals:
            del each.recorder.evaluations[tests:]  # not all ranks have ended these tests
            each.evaluation(samples / len(spec.data.train), math.nan, math.nan, samples)
    failures = {"process_failure": failure.of(failed)} if failure else {}
    return {**first, "nodes": cluster.hosts_of(ranks), "sent_bytes": sum(world.bytes), **failures}
