"""What a sparse scheme must hold: sum and rests are the input, equal on all ranks, in any order of turns."""

import numpy as np

from hpcdl.aggregation.parts.entries import Series, dense
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.virtual.clocks import in_process


def drawn(ranks, size, count, *seed):
    """Return random entries of each rank, with whole numbers from -1000 to 1000: sums are exact."""
    entries = []
    for rank in range(ranks):
        generator = np.random.default_rng([ranks, size, rank, *seed])
        indices = np.sort(generator.permutation(size)[:count]).astype(np.int32)
        entries.append(Sparse(indices, generator.integers(-1000, 1001, count).astype(np.float32)))
    return entries


def fault(results, inputs, size):
    """Return the errors in the ranks' results of one sum of whole numbers; empty if there are none."""
    total = results[0].total
    for rank, reduced in enumerate(results):
        for entries in reduced:
            if entries.indices.dtype != np.int32 or (np.diff(entries.indices) <= 0).any():
                return f"rank {rank}: positions are not rising int32"
        same = np.array_equal(reduced.total.indices, total.indices)
        if not same or reduced.total.values.tobytes() != total.values.tobytes():
            return f"ranks 0 and {rank} have different sums"
    after = dense(total, size).astype(np.float64) + sum(dense(reduced.rest, size) for reduced in results)
    before = np.zeros(size) + sum(dense(entries, size) for entries in inputs)
    wrong = np.flatnonzero(after != before)
    if not len(wrong):
        return ""
    return f"element {wrong[0]}: sum and rests are {after[wrong[0]]:g}, not {before[wrong[0]]:g}"


def check_sparse(scheme):
    """Return the first error in sums of whole numbers, on many ranks and in many orders; empty if there is none."""
    for ranks in (1, 2, 3, 4, 5, 8, 9, 13, 17):
        for size, count in ((0, 0), (1, 1), (60, 60), (1009, 30)):
            series = [Series(size, count) for _ in range(ranks)]
            for seed in range(5):  # a series uses its state again
                inputs = drawn(ranks, size, count, seed)
                results = in_process(ranks, seed).run(
                    lambda comm, inputs=inputs, series=series: scheme(comm, inputs[comm.rank], series[comm.rank])
                )
                if wrong := fault(results, inputs, size):
                    return f"{ranks} ranks, {count} of {size} elements, schedule {seed}: {wrong}"
    return ""


def check_sparse_parts(scheme):
    """Return the first error in sums of four groups of ranks at the same time."""
    inputs = drawn(9, 50, 20)

    async def program(comm):
        part = await comm.split(comm.rank % 4, -comm.rank)
        return await scheme(part, inputs[comm.rank], Series(50, 20))

    results = in_process(9, 1).run(program)
    return "".join(fault(results[group::4], inputs[group::4], 50) for group in range(4))
