"""Launches of the compressors' kernels on NVIDIA GPUs: a class per module of :mod:`hpcdl.compression.kernels`.

A method computes the bits of the numba kernel of its name, whose docstring it shares. Its CUDA kernels are in the
``.cu`` file of the class. They use no block barriers and no atomics, so that tests can run them on a CPU. Entropy
codes stay on the host: their input is small. Packed bits, boundaries, totals and values of segments, positions and
results are on the host.
"""

from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hpcdl.compression.kernels import low_rank
from hpcdl.compression.kernels.random_levels import join
from hpcdl.compression.kernels.reproducible import CHUNK, LANES, add_chunks
from hpcdl.compression.parts.selection import Magnitude, bits
from hpcdl.fabric.comm import Array, Device

FOLDER: Final = Path(__file__).parent / "cuda"
ENTRIES_OF_THREAD: Final = 64
"""Entries, or counts, that a thread of ``entries.cu`` reads one after the other."""


class Launcher:
    """Launches kernels of the file ``source``."""

    def __init__(self, device: Device, source: str) -> None:
        self._device = device
        self._source = source

    def _launch(self, kernel: str, dtype: npt.DTypeLike, threads: int, *arguments: Array | float | None) -> None:
        self._device.launch(self._source, kernel, str(dtype), threads, *arguments)

    def _checked(
        self, kernel: str, dtype: npt.DTypeLike, threads: int, arrays: Sequence[Array | None], *sizes: int
    ) -> bool:
        """Launch a kernel with a flag between ``arrays`` and ``sizes``; return True unless it sets the flag."""
        wrong = self._device.zeros((1,), "int32")
        self._launch(kernel, dtype, threads, *arrays, wrong, *sizes)
        return not self._device.to_host(wrong)[0]


class Halves(Launcher):
    """See :mod:`hpcdl.compression.kernels.halves`."""

    def narrow_float16(self, numbers: Array, sent: Array, residual: Array | None) -> bool:
        n = len(numbers)
        return self._checked("narrow", "float16", n, (numbers, sent.view("float16"), residual), n)

    def widen_float16(self, sent: Array, numbers: Array) -> bool:
        return self._checked("widen", "float16", len(sent), (sent.view("float16"), numbers), len(sent))


class LowRank(Launcher):
    """See :mod:`hpcdl.compression.kernels.low_rank`."""

    def orthonormalize(self, columns: Array) -> None:
        """See :func:`hpcdl.compression.kernels.low_rank.orthonormalize`.

        It runs on the host: the matrix is a few columns, and its sums have one order on all machines.
        """
        on_host = self._device.to_host(columns)
        low_rank.orthonormalize(on_host)
        columns[:] = self._device.asarray(on_host)

    def write_product(self, left: Array, right: Array, into: Array) -> None:
        (rows, columns), rank = into.shape, left.shape[1]
        self._launch("write_product", into.dtype, into.size, left, right, into, rows, columns, rank)


class Entries(Launcher):
    """See :mod:`hpcdl.compression.kernels.entries`."""

    def take(self, vector: Array, indices: Array) -> Array:
        device, n, dtype = self._device, len(indices), vector.dtype
        values = device.empty((n,), str(dtype))
        self._launch("take", dtype, n, vector, device.asarray(indices), values, n)
        return device.to_host(values)

    def _write(self, kernel: str, indices: Array, values: Array, into: Array) -> None:
        device, n = self._device, len(indices)
        self._launch(kernel, into.dtype, n, into, device.asarray(indices), device.asarray(values), n)

    put = partialmethod(_write, "put")
    add = partialmethod(_write, "add")

    def correct(self, gradient: Array, velocity: Array, accumulated: Array, momentum: float, scale: float) -> None:
        n = len(gradient)
        self._launch(
            "correct", gradient.dtype, n, gradient, velocity, accumulated, n, float(momentum), float(scale)
        )

    def are_finite(self, vector: Array) -> bool:
        return self._count(vector, 0)[1]

    def sample(self, vector: Array, sampled: Array, seed: np.uint64) -> None:
        device, dtype = self._device, vector.dtype
        drawn = device.empty(sampled.shape, str(dtype))
        start = int(seed.astype(np.int64))  # launches pass integers with a sign
        self._launch("sample", dtype, len(sampled), vector, drawn, len(vector), len(sampled), start)
        sampled[:] = device.to_host(drawn).view(sampled.dtype)

    def find(self, vector: Array, threshold: Magnitude, likely: int) -> tuple[Array, bool]:  # noqa: ARG002
        device, n = self._device, len(vector)
        counts, finite = self._count(vector, int(threshold))
        offsets = self._offsets(counts)
        positions = device.empty((int(device.to_host(offsets[-1:])[0]),), "int32")
        threads = -(-n // ENTRIES_OF_THREAD)
        self._launch("collect", vector.dtype, threads, vector, offsets, positions, n, int(threshold))
        return device.to_host(positions), finite

    def _count(self, vector: Array, threshold: int) -> tuple[Array, bool]:
        """Return the number of entries of each chunk that reach ``threshold``, and True if all are finite."""
        chunks = -(-len(vector) // ENTRIES_OF_THREAD)
        counts = self._device.empty((chunks,), "int64")
        sizes = (len(vector), threshold, int(bits(np.inf, vector.dtype)))
        return counts, self._checked("count", vector.dtype, chunks, (vector, counts), *sizes)

    def _offsets(self, counts: Array) -> Array:
        """Return the sums of the counts before each, and of all, (n + 1,): of groups first."""
        device, n = self._device, len(counts)
        groups = -(-n // ENTRIES_OF_THREAD)
        before = device.zeros((1,), "int64")
        if groups > 1:
            sums = device.empty((groups,), "int64")
            self._launch("sum_groups", "float32", groups, counts, sums, n)
            before = self._offsets(sums)
        offsets = device.zeros((n + 1,), "int64")
        self._launch("add_before", "float32", groups, counts, before, offsets, n)
        return offsets


class Segments:
    """Segments of one span; see :meth:`hpcdl.compression.parts.protocol.Segments.cuts`."""

    def __init__(self, device: Device, cuts: Array) -> None:
        self.host_cuts = cuts
        """Kept so that no other array can get its ``id``, by which :class:`SegmentLauncher` finds it."""
        self.count = len(cuts) - 1
        counts = -(-np.diff(cuts) // CHUNK)
        self.firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        """First chunk of each segment, and the number of chunks, on the host."""
        self.chunks = int(self.firsts[-1])
        segment = np.repeat(np.arange(self.count), counts)
        edges = cuts[segment] + (np.arange(self.chunks) - self.firsts[segment]) * CHUNK
        self.edges = device.asarray(np.append(edges, cuts[-1]))
        """Boundaries of chunks."""
        self.cuts = device.asarray(cuts)
        """Boundaries of segments."""


class SegmentLauncher(Launcher):
    """A launcher that knows the segments of the spans that a compressor exchanges."""

    def __init__(self, device: Device, source: str) -> None:
        super().__init__(device, source)
        self._known: dict[int, Segments] = {}

    def _segments(self, cuts: Array) -> Segments:
        """Return the segments with these boundaries; a compressor has one array of them per span."""
        if id(cuts) not in self._known:
            self._known[id(cuts)] = Segments(self._device, cuts)
        return self._known[id(cuts)]

    def _encode(self, vector: Array, cuts: Array, values: Array, packed: Array, *more: int) -> None:
        device, segments = self._device, self._segments(cuts)
        bits = device.empty(packed.shape, "uint8")
        arrays = (vector, segments.cuts, device.asarray(values), bits)
        self._launch("encode", vector.dtype, len(packed), *arrays, len(vector), segments.count, *more)
        packed[:] = device.to_host(bits)

    def decode(self, packed: Array, cuts: Array, values: Array, into: Array) -> None:
        device, segments = self._device, self._segments(cuts)
        arrays = (device.asarray(packed), segments.cuts, device.asarray(values), into)
        self._launch("decode", into.dtype, len(packed), *arrays, len(into), segments.count)


class TwoValues(SegmentLauncher):
    """See :mod:`hpcdl.compression.kernels.two_values`."""

    def sums(self, vector: Array, cuts: Array, totals: Array) -> None:
        device, segments, dtype = self._device, self._segments(cuts), vector.dtype
        chunks, edges = segments.chunks, segments.edges
        lanes, sums = device.empty((3, chunks, LANES), "float64"), device.empty((chunks, 3), "float64")
        self._launch("sum_lanes", dtype, chunks * LANES, vector, edges, lanes, chunks)
        self._launch("sum_chunks", dtype, 3 * chunks, lanes, edges, sums, chunks)
        add_chunks(device.to_host(sums), segments.firsts, totals)

    def encode(self, vector: Array, cuts: Array, values: Array, packed: Array) -> None:
        self._encode(vector, cuts, values, packed)

    def encode_signs(self, vector: Array, packed: Array, turn: int) -> bool:
        bits = self._device.empty(packed.shape, "uint8")
        finite = self._checked("encode_signs", vector.dtype, len(packed), (vector, bits), len(vector), turn)
        packed[:] = self._device.to_host(bits)
        return finite

    def decode_signs(self, packed: Array, into: Array) -> None:
        self._launch("decode_signs", into.dtype, len(into), self._device.asarray(packed), into, len(into))


class RandomLevels(SegmentLauncher):
    """See :mod:`hpcdl.compression.kernels.random_levels`."""

    def moments(self, vector: Array, cuts: Array, totals: Array) -> None:
        device, segments, dtype = self._device, self._segments(cuts), vector.dtype
        chunks, edges = segments.chunks, segments.edges
        lanes, moments = device.empty((2, chunks, LANES), "float64"), device.empty((chunks, 2), "float64")
        self._launch("moment_lanes", dtype, chunks * LANES, vector, edges, lanes, chunks)
        self._launch("moments_of_chunks", dtype, chunks, lanes, edges, moments, chunks)
        join(device.to_host(moments), segments.firsts, totals)

    def encode(
        self, vector: Array, cuts: Array, scalers: Array, packed: Array, stream: np.uint64, position: int
    ) -> None:
        # launches pass integers with a sign
        self._encode(vector, cuts, scalers, packed, int(stream.astype(np.int64)), position)


KERNELS: Final[dict[str, type[Launcher]]] = {
    "entries": Entries,
    "halves": Halves,
    "low_rank": LowRank,
    "random_levels": RandomLevels,
    "two_values": TwoValues,
}


def launcher(device: Device, name: str) -> Launcher:
    """Return the kernels of the module ``name`` and of ``name.cu``."""
    return KERNELS[name](device, str(FOLDER / name))
