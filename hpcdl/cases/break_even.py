"""``kind = "break_even"``: a compressor against the overlapped 16-bit ring, in virtual time.

Encoders, decoders and sums have the prices that they are measured at on this machine; messages those of the
network. The processor that computes compresses, too: no GPU, and no copies to one, are simulated. The compressor
has its fastest exchange at each bandwidth, unless the case names one. The baseline is what practitioners use:
float16, a ring, and the strategy's overlap (Agarwal et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from time import thread_time
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.run.break_even import crossing
from hpcdl.cases.simulation.exchange_prices import exchange_prices
from hpcdl.cases.simulation.step_simulation import VirtualStep, tensors_of, virtual_step
from hpcdl.cases.spec import combinations
from hpcdl.cases.spec.compute_times import ComputeSource, shape_text
from hpcdl.cases.spec.keys import MAX_RANKS, MAX_THREADS, Choice, about, architecture, check_layers, key
from hpcdl.cases.spec.scheme import NONE, check_lengths, plan, try_compressor, try_out
from hpcdl.cases.spec.step_spec import StepSpec
from hpcdl.fabric.network import NETWORKS, Link
from hpcdl.nn.volumes import FLOAT_BYTES, volumes
from hpcdl.training.parts.bucketing import bucket_bytes
from hpcdl.training.parts.compressed.plan import ExchangeSettings, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.trace.recorder import Scalar
    from hpcdl.training.parts.journal import Journal

RING: Final = Choice("aggregation", "ring")
HALF: Final = tuple((Choice("compression", name), RING) for name in ("fp16", "bf16"))
"""Compression and aggregation of the baseline: the faster of the two."""
DENSE: Final = tuple(
    (Choice("compression", NONE), scheme) for scheme in (RING, Choice("aggregation", "halving_doubling"))
)
"""Dense exchanges of which the best is compared, too."""
SUMS: Final = ("ring", "halving_doubling")
"""Schemes of which a compressor of vectors has the fastest."""
GATHERS: Final = ("allgather", "sharded_parameter_server", "sparcml")
"""Schemes of which another compressor has the fastest that can exchange what it makes."""
RANGE: Final = 10**0.5
"""Break-even bandwidths are searched from the network's divided by this to the network's times this."""
SQUARE: Final = 1024
"""Rows of the matrices whose product gives this processor's rate."""
CALLS: Final = 5
"""Products; the fastest counts."""
MAX_IMAGES: Final = 10**6
"""Images of a rank's batch, at most."""
COPIES: Final = 6
"""Gradients in memory while prices are measured: of two ranks the gradient, the residual and a copy."""


@dataclass(frozen=True, kw_only=True)
class BreakEvenSpec(StepSpec):
    """Keys of a set-up; properties raise ValueError for settings that cannot be."""

    model: Choice = key(folder="models")
    dataset: Choice | None = key(None, folder="datasets")
    training: Choice = key(Choice("training", "synchronous"), folder="training")
    aggregation: Choice | None = key(None, folder="aggregation")
    compression: Choice = key(folder="compression", around=ExchangeSettings)
    ranks: int = key(least=2, most=MAX_RANKS)
    batch_per_rank: int = key(least=1, most=MAX_IMAGES)
    network: str = key(choices=tuple(NETWORKS))
    ranks_per_host: int = key(1, least=1, most=MAX_RANKS)
    flops: float | None = key(None, above=0)
    times: str | None = key(None)
    threads: int = key(1, least=1, most=MAX_THREADS)
    trace: str = key("steps", choices=("steps",))

    @property
    def compute_source(self) -> ComputeSource:
        """Source of the times of work: without one the rate of this processor."""
        given = ComputeSource(None, self.flops, self.times)
        return given if given.given else ComputeSource(None, processor_flops(), None)

    @cached_property
    def aggregations(self) -> list[Choice]:
        """The scheme that the case names, or those of which the fastest counts."""
        if self.aggregation:
            return [self.aggregation]
        names = SUMS if kind_of(self.compression.find()) == "vectors" else GATHERS
        schemes = [Choice("aggregation", name) for name in names]
        return [scheme for scheme in schemes if not any(self.refusals(scheme))]

    def refusals(self, scheme: Choice) -> Iterator[str]:
        """Yield the reasons why a scheme cannot exchange the compressed gradients."""
        return combinations.refusals("break_even", replace(self, aggregation=scheme))


SPEC: Final = BreakEvenSpec


@cache
def processor_flops() -> float:
    """Return the rate of this processor in float32: the fastest of some matrix products, in FLOP/s."""
    a = np.ones((SQUARE, SQUARE), np.float32)
    out, spent = np.empty_like(a), []
    for _ in range(CALLS):
        began = thread_time()
        np.matmul(a, a, out=out)
        spent.append(thread_time() - began)
    return 2 * SQUARE**3 / min(spent)


@cache
def _prices(
    model: Choice, dataset: Choice | None, compression: Choice, aggregation: Choice | None
) -> dict[str, float]:
    shape, layers = architecture(model, dataset)
    assert aggregation is not None, "an exchange has one"
    return exchange_prices(plan(compression, aggregation), aggregation.bind(), tensors_of(layers, shape))


@cache  # cases share their baselines
def _step(spec: BreakEvenSpec, rate: float) -> VirtualStep:
    """Return a step with the case's compression and aggregation at a bandwidth of ``rate`` bytes/s."""
    network = replace(spec.cluster, link=Link(spec.cluster.link.alpha, 1 / rate))
    training = spec.simulated(_prices(spec.model, spec.dataset, spec.compression, spec.aggregation))
    bucket = bucket_bytes(network.link.alpha, network.link.beta, spec.ranks)
    images = spec.batch_per_rank
    return virtual_step(training, spec.ranks, images, network, spec.compute_times, bucket, traced=True)


def check(spec: BreakEvenSpec, _given: Collection[str]) -> None:
    """See :class:`hpcdl.suite.Kind`."""
    source = ComputeSource(None, spec.flops, spec.times).given
    if len(source) > 1:
        raise ValueError("times: give at most one of flops and times")
    if spec.compression.name == NONE:
        raise ValueError("compression: name a compressor; dense exchanges are compared with it")
    for scheme in spec.aggregations or [Choice("aggregation", GATHERS[0])]:
        for message in spec.refusals(scheme):
            raise ValueError(message)
        with about("compression"):
            chosen = plan(spec.compression, scheme)
            assert chosen is not None
            try_compressor(spec.compression, chosen)
            check_lengths(chosen)
    with about("training"):
        spec.strategy.check(spec.ranks, spec.training.in_full)
    with about("model"):
        check_layers(spec.layers, spec.shape)
    if source:
        with about(source[0]):
            spec.compute_times.step_seconds(spec.batch_per_rank)
    for _, aggregation in DENSE:
        try_out(aggregation, spec.ranks)


def memory_bytes(spec: BreakEvenSpec) -> int:
    """See :class:`hpcdl.suite.Kind`: gradients of the ranks whose exchange is measured."""
    return COPIES * FLOAT_BYTES * volumes(spec.layers, spec.shape, 1).parameters


def identity(spec: BreakEvenSpec) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    choices = [str(choice) for choice in (spec.model, spec.training, spec.aggregation, spec.compression) if choice]
    return [*choices, spec.network, f"p{spec.ranks}", f"b{spec.batch_per_rank}each"]


def fields(spec: BreakEvenSpec) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    return {
        **{name: str(getattr(spec, name)) for name in ("model", "training", "compression")},
        "dataset": str(spec.dataset) if spec.dataset else shape_text(spec.shape),
        "dtype": "float32",
        "batch_per_rank": spec.batch_per_rank,
        "global_batch": spec.batch_per_rank * spec.ranks,
        "scaling": "weak",
        "threads_per_rank": spec.threads,
        **{name: getattr(spec, name) for name in ("network", "ranks_per_host", "times")},
    }


def program(
    spec: BreakEvenSpec, _journal: Journal
) -> Callable[[Comm], Coroutine[object, object, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    own = [replace(spec, aggregation=scheme) for scheme in spec.aggregations]
    half, dense = (
        [replace(spec, compression=compression, aggregation=scheme) for compression, scheme in baselines]
        for baselines in (HALF, DENSE)
    )

    def fastest(exchanges: Sequence[BreakEvenSpec], rate: float) -> tuple[BreakEvenSpec, VirtualStep]:
        return min(((exchange, _step(exchange, rate)) for exchange in exchanges), key=lambda pair: pair[1].seconds)

    async def simulate(_comm: Comm) -> dict[str, Scalar]:
        rate = 1 / spec.cluster.link.beta
        (exchange, step), (_, baseline), (_, plain) = (fastest(each, rate) for each in (own, half, dense))
        prices = _prices(spec.model, spec.dataset, exchange.compression, exchange.aggregation)

        def crossed(others: Sequence[BreakEvenSpec]) -> float | None:
            def gain(level: float) -> float:
                return fastest(others, level)[1].seconds - fastest(own, level)[1].seconds

            return crossing(gain, rate / RANGE, rate * RANGE)

        return {
            "aggregation": str(exchange.aggregation),
            "parameters": volumes(spec.layers, spec.shape, 1).parameters,
            "modelled_compute_seconds": spec.compute_times.step_seconds(spec.batch_per_rank),
            "bandwidth_bytes_per_second": rate,
            "compressed_seconds": step.seconds,
            "half_precision_seconds": baseline.seconds,
            "dense_seconds": plain.seconds,
            "step_bytes": step.bytes_sent,
            "dense_bytes": plain.bytes_sent,
            **{
                f"{label}_seconds": step.touched.get(label, 0.0) * prices.get(label, 0.0)
                for label in ("encode", "decode")
            },
            "break_even_bytes_per_second": crossed(half),
            "break_even_dense_bytes_per_second": crossed(dense),
        }

    return simulate
