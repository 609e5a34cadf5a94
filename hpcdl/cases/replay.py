"""``kind = "replay"``: a training's messages and times without its arithmetic, on the network that is there.

Ranks sleep for as long as a device would compute, and exchange vectors as long as the gradients, when and as the
strategy does: an interconnect is tested under the traffic of a training, with no device and many ranks to a core.
With ``network`` the same steps take virtual time on a modelled network: any number of ranks in one process.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from statistics import fmean
from time import perf_counter, sleep
from typing import Any, Final

import numpy as np

from hpcdl.aggregation.parts.traits import half
from hpcdl.cases.keys.checks import CHECKED_PAIRS, CLUSTER, STAGES, STRAGGLER, Check, Setup, makes
from hpcdl.cases.keys.compute_times import CORE, DEVICES, TIMES, ComputeTimes, shipped
from hpcdl.cases.keys.key import MAX_RANKS, MAX_STEPS, MAX_THREADS, Choice, key, varies
from hpcdl.cases.keys.scheme import NONE, check_lengths, compression_fields, try_compressor, try_out
from hpcdl.cases.keys.step_spec import SizedSteps, StepSpec
from hpcdl.cases.keys.train_spec import MAX_JITTER
from hpcdl.cases.parts.autotune import fitted_bucket_bytes
from hpcdl.cases.parts.measuring import alike
from hpcdl.cases.parts.operations import Zeros, phantoms, sizes
from hpcdl.cases.parts.step_simulation import Conditions, costs_of, late_rank, virtual_step
from hpcdl.fabric.comm import INPUT, Array, Comm
from hpcdl.fabric.faults import EVERY, REAL, Delays, ModelledCompute, Slowed, Straggler, accurate_sleep, oversleep
from hpcdl.fabric.network import NETWORKS, Site
from hpcdl.fabric.vectors import Parts
from hpcdl.nn.volumes import FLOAT_BYTES, volumes
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.bucketing import bucket_bytes
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.mesh import Mesh
from hpcdl.training.parts.plan import ExchangeSettings

MAX_SECONDS: Final = 10**6
"""Sum of the sleeps of a replay, at most: 11 days."""
COMPRESSED_COPIES: Final = 6
"""Vectors of a compressed exchange: gradient, its values, residual, two of a compressor, messages."""

STRIDE: Final = 65_521
"""Elements between the marks of a vector: a prime, so that they meet the parts of no partition alike."""
CYCLE: Final = 1000
"""Sums after which a rank's marks repeat; sums over a thousand ranks are exact in float32."""

RANDOM_STEPS: Final = 32
"""Simulated steps of ranks whose times vary."""

MAX_PARAMETERS: Final = 10**15
"""Parameters of a network, at most."""
MAX_IMAGES: Final = 10**9
"""Images of a rank's batch, at most."""


@dataclass(frozen=True, kw_only=True)
class ReplaySpec(StepSpec):
    """Keys of a replay; properties raise ValueError for settings that cannot be."""

    model: Choice = key(folder="models", role="problem")
    dataset: Choice | None = key(None, folder="datasets", role="problem")
    training: Choice = key(Choice("training", "synchronous"), folder="training", role="method")
    aggregation: Choice = key(Choice("aggregation", "ring"), folder="aggregation", role="method")
    compression: Choice = key(
        Choice("compression", NONE), folder="compression", around=ExchangeSettings, role="method"
    )
    ranks: int = key(least=1, most=MAX_RANKS, role="scale")
    batch_per_rank: int | None = key(None, least=1, most=MAX_IMAGES, role="scale")
    global_batch: int | None = key(None, least=1, most=MAX_IMAGES, role="scale")
    mesh: Mesh | None = key(None, table=Mesh, role="method", column="parallelism")
    steps: int = key(20, least=1, most=MAX_STEPS, role="problem", column="planned_steps")
    warmup: int = key(2, least=0, role="sampling")
    device: str | None = key(None, choices=tuple(DEVICES), role="machine")
    flops: float | None = key(None, above=0, role="machine")
    times: str | None = key(None, role="machine")
    time_scale: float = key(1.0, above=0, role="machine")
    network: str | None = key(None, choices=tuple(NETWORKS), role="machine")
    topology: Choice | None = key(None, folder="topologies", around=Site, role="machine")
    ranks_per_host: int = key(1, least=1, role="machine")
    straggler: Straggler | None = key(None, table=Straggler)
    jitter: float = key(0.0, least=0, most=MAX_JITTER, role="machine")
    threads: int = key(1, least=1, most=MAX_THREADS, role="problem", column="threads_per_rank")
    trace: str | None = key(None, choices=("events", "steps", "alternating"))
    """None: events of measured ranks, and steps of simulated ones, of which one host's may then stand for all."""

    @property
    def images(self) -> int:
        """Images of a copy's batch."""
        if self.global_batch is not None:
            return self.global_batch // self.copies
        return (self.batch_per_rank or 0) * self.model_ranks

    @property
    def all_steps(self) -> int:
        """Number of steps with those of the warm-up."""
        return self.warmup + self.steps

    @property
    def times_key(self) -> str:
        """Key that gives the times of work; the first of those that may if none does."""
        return (self.times_given or TIMES)[0]

    @cached_property
    def compute_times(self) -> ComputeTimes:
        """Times of the work of a rank."""
        if not self.times_given:
            known = shipped(CORE, str(self.model), self.shape, self.images)
            if known is None:
                raise ValueError(
                    f"give exactly one of {', '.join(TIMES)}; no times of the model on a CPU are known"
                )
            return known.of_network(self.layers, self.shape).scaled(self.time_scale)
        return super().compute_times.scaled(self.time_scale)


SPEC: Final = ReplaySpec


def _batch(case: Setup) -> object:
    if (case.global_batch is None) == (case.batch_per_rank is None):
        return "give exactly one of global_batch, batch_per_rank"
    indivisible = case.global_batch is not None and case.global_batch % case.copies
    return (
        indivisible and f"{case.global_batch} images are not divisible by the {case.copies} copies of the network"
    )


def _sleeps(case: Setup) -> object:
    seconds = case.all_steps * case.compute_times.step_seconds(case.images)
    return not (case.network or seconds <= MAX_SECONDS) and f"{seconds:.3g} s, and may for {MAX_SECONDS} s at most"


CHECKS: Final = (
    makes("model", "times_given"),
    Check("{times_given[1]}", lambda case: case.times_given[1:], f"give exactly one of {', '.join(TIMES)}"),
    makes("mesh", "replicas"),
    *CHECKED_PAIRS,
    *CLUSTER,
    Check("training", lambda case: case.strategy.check_settings(case.ranks, case.training.in_full)),
    Check("global_batch", _batch, of="ranks"),
    makes("model", "outputs"),
    Check(
        "model",
        lambda case: (size := volumes(case.layers, case.shape, 1).parameters) > MAX_PARAMETERS and size,
        f"has {{wrong:.3g}} parameters, and may have {MAX_PARAMETERS:.0e}",
    ),
    Check("aggregation", lambda case: try_out(case.aggregation, case.ranks // case.stages)),
    Check("compression", lambda case: try_compressor(case.compression, case.plan)),
    Check("compression", lambda case: check_lengths(case.plan) if case.network else None, of="plan"),
    *STAGES,
    STRAGGLER,
    Check("{times_key}", _sleeps, "the steps would sleep for {wrong}"),
)
"""Checks of a replay, in order."""


def memory_bytes(spec: ReplaySpec) -> int:
    """See :class:`hpcdl.suite.Kind`: gradients, and as much again for a scheme's inbox, or for compression.

    Sharded training also exchanges parameters.
    """
    if spec.network:
        return 0
    copies = 2 + spec.strategy.shards_state if spec.plan is None else COMPRESSED_COPIES
    return copies * FLOAT_BYTES * volumes(spec.layers, spec.shape, 1).parameters


def identity(spec: ReplaySpec) -> list[str]:
    return spec.words([spec.model, spec.training, spec.aggregation], f"{spec.steps}st")


def fields(spec: ReplaySpec) -> dict[str, Scalar]:
    return {
        **spec.common_fields,
        "global_batch": spec.images * spec.copies,
        "steps": 1 if spec.network else spec.all_steps,
        "planned_steps": spec.steps if spec.network else spec.all_steps,
        "lockstep": bool(spec.network) or spec.strategy.lockstep,  # a simulation records the mean step of a cycle
        "warmup_steps": 0 if spec.network else spec.warmup,
        **{name: getattr(spec, name) for name in (*TIMES, "time_scale", "network")},
        **({"compute_times": spec.compute_times.source} if not spec.times and spec.compute_times.source else {}),
        **(spec.straggler.fields if spec.straggler else {}),
        "jitter": spec.jitter or None,
        "modelled_compute_seconds": spec.compute_times.step_seconds(spec.images),
    }


def program(spec: ReplaySpec, journal: Journal) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    if spec.network:
        return partial(_simulate, spec, journal)
    train = spec.training.bind()

    async def play(comm: Comm) -> dict[str, Scalar]:
        random = np.random.default_rng((comm.rank, journal.draw))

        def draw(size: int) -> Array:
            return random.standard_normal(size, np.float32)

        activations = phantoms if spec.group_ranks == 1 else Zeros()
        kernels = sizes(np.zeros, activations, draw if spec.plan is not None else None)
        sums = CheckedSums(spec.aggregation.bind(), summed=not spec.independent)
        steps = SizedSteps(spec.images, spec.all_steps)
        aggregate = sums if spec.plan is None else None
        session = await spec.session(comm, journal, kernels, sized=steps, aggregate=aggregate)
        session.bucket_bytes = await fitted_bucket_bytes(comm, sleep)
        gradients, compressed = session.replica.gradients, session.compressed
        times = spec.stage_times[session.place.model.rank if session.place else 0]

        factor, deviation = 1.0, np.sqrt(np.log1p(spec.jitter**2))

        def seconds(label: str) -> float:
            nonlocal factor
            if label == INPUT and spec.jitter:
                factor = random.lognormal(-(deviation**2) / 2, deviation)
            return factor * times.seconds(label, session.inputs.group_shares[-1][1])

        before = journal.read().bytes
        if spec.straggler is not None and spec.straggler.slows(comm.rank):
            comm = Slowed(comm, Delays(spec.straggler, comm.rank, 0, journal.draw), accurate_sleep())
        costs = spec.compute_times.update_costs(spec.gradient_bytes)
        await train(ModelledCompute(comm, seconds, oversleep(), REAL, costs), session)
        sent = journal.read().bytes - before
        held = session.resident_bytes or gradients.nbytes
        journal.recorder.memory_bytes = held + (compressed.memory_bytes if compressed else 0)
        wrong = np.array([float(sums.wrong)])
        if compressed is not None:
            # Marks would not survive a compressor; equal results on all ranks are what remains to be checked.
            wrong[0] = not await alike(comm, gradients)
        await comm.native("allreduce", wrong)
        return {
            **await compression_fields(comm, session, sent, spec.warmup),
            "parameters": volumes(spec.layers, spec.shape, 1).parameters,
            "bucket_bytes": session.bucket_bytes,
            "correct": not wrong[0],
        }

    return play


async def _simulate(spec: ReplaySpec, journal: Journal, _comm: Comm) -> dict[str, Scalar]:
    """Record the mean step of each cycle in virtual time; of equal ones, one."""
    cluster, times, images = spec.cluster, spec.compute_times, spec.images
    bucket = bucket_bytes(*cluster.ring_costs(spec.ranks), spec.ranks)
    began = perf_counter()
    chance = (spec.jitter, spec.straggler, journal.draw)
    conditions = Conditions(cluster, times, images, bucket, costs_of(spec), *chance)
    journals = journal.of_ranks(spec.ranks) if spec.trace == "events" else [journal]
    traced = [each.recorder for each in journals if spec.trace == "events"]
    step = virtual_step(spec, conditions, RANDOM_STEPS if varies(spec) else 1, traced)
    every = spec.straggler is not None and spec.straggler.rank == EVERY  # then delays differ by chance
    own = [part.step_seconds(images, updates=not spec.strategy.updates_shards) for part in spec.stage_times]
    computed = fmean(own) if spec.stages > 1 else max(own)  # the wait of a pipeline is of all its ranks
    cycles = step.cycles if varies(spec) else [step.seconds]
    spans = [*pairwise([0, *np.rint(np.cumsum(cycles) * 1e9).astype(int).tolist()])]
    # events are those of the last cycle, which does not begin at once on all ranks
    shifts = [begin - spans[-1][0] for begin in step.begins] if traced else [0]
    for each, shift in zip(journals, shifts, strict=True):
        shifted = [(begin + shift, end + shift) for begin, end in spans]
        each.repetitions(shifted, 0, round(step.bytes_sent), round(computed * 1e9))
    return {
        "parameters": volumes(spec.layers, spec.shape, 1).parameters,
        "bucket_bytes": bucket,
        "nodes": cluster.hosts_of(spec.ranks),
        "simulated_ranks": step.simulated_ranks,
        "bytes_sent_per_host": step.bytes_per_host or None,
        **({} if every else late_rank(step.delays, step.seconds)),
        "simulation_seconds": perf_counter() - began,
    }


class CheckedSums:
    """Aggregation of vectors with marks, to see whether the sums over ranks are right.

    Each rank writes a number of its own at some places of a vector before the sum. ``summed``: the aggregation
    sums; otherwise it leaves vectors as they are.
    """

    def __init__(self, aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]], *, summed: bool) -> None:
        self.wrong = 0
        """Marks that differed from the expected sum."""
        self._aggregate = aggregate
        self._summed = summed
        self._sums = Counter[tuple[int, int]]()
        """Operations so far, by the vector's address and size: tasks of a rank may begin in any order."""

    async def __call__(self, comm: Comm, vector: Array) -> None:
        """Sum ``vector`` and look at its marks."""
        number = self._mark(vector, [vector], comm.rank)
        await self._aggregate(comm, vector)
        own, ranks = comm.rank + 1 + number, comm.size
        self._look(vector, ranks * (ranks + 1) // 2 + ranks * number if self._summed else own)

    async def reduce_scatter(self, comm: Comm, parts: Parts) -> None:
        """Sum each part on its rank and look at the marks of this rank's."""
        number, ranks = self._mark(parts.whole, parts, comm.rank), comm.size
        await half(self._aggregate, "reduce_scatter")(comm, parts)
        self._look(parts[comm.rank], ranks * (ranks + 1) // 2 + ranks * number)

    async def allgather(self, comm: Comm, parts: Parts) -> None:
        """Gather the ranks' parts and look at the marks of all."""
        number = self._mark(parts.whole, [parts[comm.rank]], comm.rank)
        await half(self._aggregate, "allgather")(comm, parts)
        for rank, part in enumerate(parts):
            self._look(part, rank + 1 + number)

    def _mark(self, vector: Array, parts: Sequence[Array], rank: int) -> int:
        key = vector.ctypes.data, vector.size
        number = self._sums[key] % CYCLE
        self._sums[key] += 1
        for part in parts:
            part[::STRIDE] = part[-1:] = rank + 1 + number
        return number

    def _look(self, part: Array, expected: int) -> None:
        self.wrong += int(np.count_nonzero(part[::STRIDE] != expected) + np.count_nonzero(part[-1:] != expected))
