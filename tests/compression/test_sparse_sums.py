"""Exchanges by sparse sums: nothing is lost, equal bits, and sizes without values as with them."""

import numpy as np
import pytest
from contract.aggregations import SPARSE
from contract.compression import Side, exchanged, planned
from contract.largest import Accumulating, Largest, Selected

from hpcdl.compression.parts.protocol import Compression
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.inprocess import in_process

RANKS = [1, 2, 3, 5, 8]
OWN = Compression(error_feedback=False, own_residual="accumulated")


def whole_numbers(steps, ranks, size):
    numbers = np.random.default_rng([ranks, size]).integers(-100, 101, (steps, ranks, size))
    return numbers.astype(np.float32)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("scheme", SPARSE)
def test_sums_and_residuals_are_the_gradients(scheme, ranks):
    for size in (0, 1, 17, 403):
        rows = whole_numbers(4, ranks, size)
        sums, sides = exchanged(planned(Selected, scheme), rows)
        assert (sums == sums[:, :1]).all()
        residuals = sum(side.vectors["residual"] for side in sides)
        assert (sums[:, 0].sum(axis=0) + residuals == rows.sum(axis=(0, 1))).all(), f"{size} elements"


@pytest.mark.parametrize("scheme", SPARSE)
def test_the_residual_of_the_selector_gets_what_a_sum_lacks(scheme):
    rows = whole_numbers(4, 5, 403)
    sums, sides = exchanged(planned(Accumulating, scheme, traits=OWN), rows)
    residuals = sum(side.compressed.state["accumulated"] for side in sides)
    assert (sums[:, 0].sum(axis=0) + residuals == rows.sum(axis=(0, 1))).all()


@pytest.mark.parametrize("ranks", RANKS)
def test_an_exact_sparse_sum_is_that_of_the_messages(ranks):
    rows = whole_numbers(3, ranks, 403)
    sums = [
        exchanged(planned(one, scheme), rows)[0] for one, scheme in ((Selected, "sparcml"), (Largest, "allgather"))
    ]
    assert (sums[0] == sums[1]).all()


@pytest.mark.parametrize("scheme", SPARSE)
def test_pieces_at_once_are_as_one_after_the_other(scheme):
    rows = whole_numbers(3, 4, 100)
    bounds = ((0, 13), (13, 90), (90, 100))
    runs = []
    for at_once in (False, True):
        sides = [Side(planned(Selected, scheme), 100) for _ in range(4)]
        sums = rows.copy()

        async def program(comm, sides=sides, sums=sums, at_once=at_once):
            for step in sums[:, comm.rank]:
                calls = [sides[comm.rank].reduce(comm, step, *one) for one in bounds]
                tasks = [comm.start(call) if at_once else call for call in calls]
                for task in tasks:
                    await task

        in_process(4, 3).run(program)
        runs.append(sums)
    assert (runs[0] == runs[1]).all()


@pytest.mark.parametrize("scheme", SPARSE)
def test_dense_first_steps_are_exact(scheme):
    rows = whole_numbers(2, 3, 100)
    sums, sides = exchanged(planned(Selected, scheme, warmup_steps=2), rows)
    assert (sums == rows.sum(axis=1, keepdims=True)).all()
    assert not any(side.vectors["residual"].any() for side in sides)


@pytest.mark.parametrize("scheme", SPARSE)
def test_sizes_without_values_send_as_many_messages(scheme):
    """Each rank's largest entries are in a part of its own."""
    ranks, size = 3, 600
    rows = np.zeros((ranks, size), np.float32)
    for rank in range(ranks):
        rows[rank, rank::24] = np.arange(1, 26)
    sent = []
    for vectors in (rows, [phantom(size)] * ranks):
        sides = [Side(planned(Selected, scheme), size) for _ in range(ranks)]
        world = in_process(ranks)
        world.run(lambda comm, sides=sides, vectors=vectors: sides[comm.rank].reduce(comm, vectors[comm.rank]))
        sent.append(max(world.messages))
    assert sent[0] == sent[1]


@pytest.mark.parametrize("scheme", SPARSE)
def test_values_that_are_not_finite_are_refused_by_step_and_tensor(scheme):
    rows = whole_numbers(1, 2, 28)
    rows[0, 1, 20] = np.nan
    with pytest.raises(FloatingPointError, match=r"^step 0: gradient of layer1\.weight: "):
        exchanged(planned(Selected, scheme), rows)
