"""Exchanges of compressed vectors by in-process ranks, for every compressor and scheme of the package."""

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.cases.keys.checks import ROWS, refusals
from hpcdl.cases.keys.key import Choice, restored
from hpcdl.cases.keys.scheme import plan
from hpcdl.cases.replay import ReplaySpec
from hpcdl.compression.parts.protocol import Layout, to_device, to_host
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.replica import Tensor
from hpcdl.training.parts.compressed import Compressed

COMPRESSORS = [name for name in registry.names("compression") if name != "none"]
SCHEMES = {
    name: traits
    for name in registry.names("aggregation")
    if (traits := registry.traits("aggregation", name, Aggregation)).sums and traits.memory != "device"
}


def tensors_of(size):
    """Return tensors of a vector: matrices of 7 inputs, and what remains as a bias."""
    rows = size // 7
    first = rows // 3
    shapes = [shape for shape in ((first, 7), (rows - first, 7), (size - 7 * rows,)) if prod(shape)]
    offsets = np.cumsum([0, *map(prod, shapes)]).tolist()
    return [Tensor(f"layer{i}.weight", offsets[i], shape, decay=False) for i, shape in enumerate(shapes)]


def named(compressor):
    """Return the name of a compressor of the package, or of a class of a test."""
    name = compressor if isinstance(compressor, str) else f"{compressor.__module__}:{compressor.__name__}"
    registry.trust(name, Path())
    return name


def planned(compressor, scheme, *, traits=None, scheme_settings=(), **settings):
    """Return the plan of a compressor, by name or as a class of a test, and a scheme."""
    name = named(compressor)
    found = plan(Choice("compression", name, settings), Choice("aggregation", scheme, dict(scheme_settings)))
    return found if traits is None else replace(found, traits=traits)


def fits(compressor, scheme):
    """Return whether a scheme can exchange what a compressor makes."""
    keys = {"model": "lenet5", "flops": 1e9, "ranks": 2, "batch_per_rank": 8}
    spec = restored(ReplaySpec, {**keys, "compression": named(compressor), "aggregation": scheme})
    return not any(refusals(ROWS, "replay", spec))


def covering(pairs):
    """Return the pairs that have every compressor, and every scheme with each kind of message."""
    kept, tried = [], set()
    for compressor, scheme in pairs:
        places = {compressor, (scheme, planned(compressor, scheme).kind)}
        if not places <= tried:
            kept.append((compressor, scheme))
            tried |= places
    return kept


class Side:
    """One rank's compressed gradient of ``size`` elements."""

    def __init__(self, chosen, size, dtype="float32", tensors=None, device=None):
        self.vectors = {}
        self._size = size
        self._dtype = dtype
        self._zeros = np.zeros if device is None else device.zeros
        tensors = tensors_of(size) if tensors is None else tensors
        layout = Layout(size=size, tensors=tensors, dtype=dtype, seed=5, device=device)
        self.compressed = Compressed(chosen, layout, self._vector, lambda _step: False)
        self.aggregate = lambda comm, *operands: chosen.scheme(comm, *operands, **chosen.scheme_settings)

    def _vector(self, name, size=None):
        self.vectors[name] = self._zeros((self._size if size is None else size,), self._dtype)
        return self.vectors[name]

    async def reduce(self, comm, gradient, begin=0, end=None):
        """Sum the elements from ``begin`` to ``end`` of ``gradient`` in place."""
        span = slice(begin, self._size if end is None else end)
        await self.compressed.reduce(comm, span, gradient[span], self.aggregate)


def exchanged(chosen, steps, seed=0, device=None, tensors=None):
    """Return the sums (steps, ranks, size) of rows (steps, ranks, size) and the sides of the ranks.

    The rows are on ``device`` meanwhile, unless it is None.
    """
    _, ranks, size = steps.shape
    sides = [Side(chosen, size, str(steps.dtype), tensors, device) for _ in range(ranks)]
    sums = steps.copy()

    async def program(comm):
        for step in sums:
            row = to_device(device, step[comm.rank])
            await sides[comm.rank].reduce(comm, row)
            step[comm.rank] = to_host(device, row)

    in_process(ranks, seed).run(program)
    return sums, sides
