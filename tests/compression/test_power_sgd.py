"""PowerSGD: its volumes, its sums by a plain transcription, and what no sum may lose."""

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from contract.compression import Side, exchanged, planned

from hpcdl.commands.parts.contracts import layout
from hpcdl.compression.kernels.low_rank import orthonormalize
from hpcdl.compression.power_sgd import PowerSGD
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.training.parts.plan import of_sizes


def resnet18():
    """Shapes of CIFAR's ResNet-18 (He et al. 2015): basic blocks of 64 to 512 channels, each with batch norm."""
    shapes, inputs = [(64, 3, 3, 3), *[(64,)] * 2], 64
    for outputs in (64, 128, 256, 512):
        norm = [(outputs,)] * 2
        for stride in (1 + (outputs > 64), 1):
            shapes += [(outputs, inputs, 3, 3), *norm, (outputs, outputs, 3, 3), *norm]
            shapes += [(outputs, inputs, 1, 1), *norm] if stride == 2 else []
            inputs = outputs
    return [*shapes, (10, 512), (10,)]


def test_ratios_of_resnet18_are_those_of_the_paper():
    """Vogels et al. 2019, table 3."""
    for rank, ratio in [(1, 243), (2, 136), (4, 72)]:
        whole = layout(resnet18())
        assert whole.size == 11_173_962
        sent = sum(length for length, _ in PowerSGD(whole, rank=rank).lengths(slice(0, whole.size)))
        assert round(whole.size / sent) == ratio


SHAPES = [(8, 3, 3, 3), (8,), (20, 30), (20,), (3, 2), (12, 40)]


def transcription(rows, shapes, rank, seed):
    """Algorithm 1 and error feedback with numpy's QR, for all ranks at once; returns sums and residuals."""
    ranks = rows.shape[1]
    random = np.random.default_rng(seed)
    bounds = np.cumsum([0, *map(prod, shapes)])
    sizes = [(shape[0], prod(shape[1:])) for shape in shapes]
    small = [len(shape) < 2 or rank * sum(size) >= prod(size) for shape, size in zip(shapes, sizes, strict=True)]
    drawn = random.standard_normal(sum(rank * size[1] for size, one in zip(sizes, small, strict=True) if not one))
    qs = {}
    for i, (_, columns) in enumerate(sizes):
        if not small[i]:
            qs[i], drawn = drawn[: rank * columns].reshape(columns, rank), drawn[rank * columns :]
    residual, sums = np.zeros(rows.shape[1:]), []
    for row in rows:
        given = row + residual
        total, residual = np.zeros(rows.shape[2]), np.zeros_like(residual)
        for i, (lo, hi) in enumerate(pairwise(bounds)):
            if small[i]:
                total[lo:hi] = given[:, lo:hi].sum(axis=0)
                continue
            matrices = given[:, lo:hi].reshape(ranks, *sizes[i])
            p, _ = np.linalg.qr(sum(m @ np.linalg.qr(qs[i])[0] for m in matrices))
            qs[i] = sum(m.T @ p for m in matrices)
            total[lo:hi] = (p @ qs[i].T).ravel()
            residual[:, lo:hi] = given[:, lo:hi] - total[lo:hi] / ranks
        sums.append(total)
    return np.array(sums), residual


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sums_are_those_of_a_plain_transcription(ranks, rank):
    size = sum(map(prod, SHAPES))
    rows = np.random.default_rng(ranks).standard_normal((3, ranks, size)).astype(np.float32)
    sums, sides = exchanged(planned("power_sgd", "ring", rank=rank), rows, tensors=layout(SHAPES).tensors)
    assert (sums == sums[:, :1]).all()
    wanted, kept = transcription(rows.astype(float), SHAPES, rank, 5)
    np.testing.assert_allclose(sums[:, 0], wanted, atol=2e-3)
    np.testing.assert_allclose([side.compressed.residual for side in sides], kept, atol=2e-3)


def test_columns_are_orthonormal():
    for columns in [1, 3, 7]:
        random = np.random.default_rng(columns)
        for matrix in (
            random.standard_normal((7, columns)),
            np.zeros((7, columns)),
            np.ones((7, columns)),
            random.standard_normal((7, columns)) * 1e-30,
        ):
            found = matrix.astype(np.float32)
            orthonormalize(found)
            np.testing.assert_allclose(found.T @ found, np.eye(columns), atol=1e-5)


def test_the_two_sums_of_buckets_overlap():
    """A bucket's second sum waits for its first; sums of other buckets use the links meanwhile."""
    chosen, tensors = of_sizes(planned("power_sgd", "binomial", rank=1)), layout([(64, 64)] * 8).tensors
    took = []
    for at_once in (False, True):
        sides = [Side(chosen, 8 * 4096, tensors=tensors) for _ in range(8)]

        async def program(comm, sides=sides, at_once=at_once):
            calls = [sides[comm.rank].reduce(comm, phantom(8 * 4096), 4096 * i, 4096 * (i + 1)) for i in range(8)]
            tasks = [comm.start(call) if at_once else call for call in calls]
            for task in tasks:
                await task

        world = simulated(8, NETWORKS["ethernet-1g"])
        world.run(program)
        took.append(world.now)
    assert took[1] < 0.75 * took[0]
