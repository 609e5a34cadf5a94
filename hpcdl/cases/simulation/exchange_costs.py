"""Costs of the arithmetic in an exchange: encoders, decoders and sums, measured on this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import iadd
from statistics import median
from time import thread_time
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from hpcdl.aggregation.ring import ring
from hpcdl.cases.keys.step_spec import StepSpec
from hpcdl.cases.simulation.sizes import sizes
from hpcdl.compression.parts.protocol import Layout, Tensor
from hpcdl.fabric.comm import Array, Comm, Wrapper
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.replica import Replica
from hpcdl.training.parts.compressed.compressed import Compressed
from hpcdl.training.parts.compressed.plan import Plan

MAX_ELEMENTS: Final = 4 << 20
"""Elements of the gradient that is exchanged, at most: costs per byte no longer depend on the length."""
RANKS: Final = 2
"""Ranks of the measured exchange: the fewest that add."""
CALLS: Final = 6
"""Exchanges; the first compiles kernels, and the median of the others counts."""


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
        for _ in range(RANKS)
    ]
    measured: dict[str, list[float]] = {}
    for call in range(CALLS):
        spent: dict[str, list[float]] = {}
        vectors = [gradient * np.float32(rank + 1) for rank in range(RANKS)]

        async def exchange(comm: Comm) -> None:
            timed, vector, side = _Timed(comm, spent), vectors[comm.rank], sides[comm.rank]  # noqa: B023 - runs now
            if side is None:
                await aggregate(timed, vector)
            else:
                await side.reduce(timed, slice(0, size), vector, aggregate)

        with threadpool_limits(1):
            in_process(RANKS).run(exchange)
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
