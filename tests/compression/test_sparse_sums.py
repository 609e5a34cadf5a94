"""Exchanges by sparse sums: nothing is lost, equal bits, and sizes without values as with them."""

import numpy as np
import pytest
from contract.aggregations import SPARSE
from contract.compression import Side, exchanged, planned
from contract.largest import Accumulating, Selected

from hpcdl.compression.parts.protocol import Compression
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.training.parts.compressed.plan import of_sizes

OWN = Compression(error_feedback=False, own_residual="accumulated")


def whole_numbers(steps, ranks, size):
    numbers = np.random.default_rng([ranks, size]).integers(-100, 101, (steps, ranks, size))
    return numbers.astype(np.float32)


@pytest.mark.parametrize("scheme", SPARSE)
def test_the_residual_of_the_selector_gets_what_a_sum_lacks(scheme):
    rows = whole_numbers(4, 5, 403)
    sums, sides = exchanged(planned(Accumulating, scheme, traits=OWN), rows)
    residuals = sum(side.compressed.state["accumulated"] for side in sides)
    assert (sums[:, 0].sum(axis=0) + residuals == rows.sum(axis=(0, 1))).all()


@pytest.mark.parametrize("scheme", SPARSE)
def test_sizes_without_values_send_as_many_messages(scheme):
    """Each rank's largest entries are in a part of its own."""
    ranks, size = 3, 600
    rows = np.zeros((ranks, size), np.float32)
    for rank in range(ranks):
        rows[rank, rank::24] = np.arange(1, 26)
    sent = []
    chosen = planned(Selected, scheme)
    for plan, vectors in ((chosen, rows), (of_sizes(chosen), [phantom(size)] * ranks)):
        sides = [Side(plan, size) for _ in range(ranks)]
        world = in_process(ranks)
        world.run(lambda comm, sides=sides, vectors=vectors: sides[comm.rank].reduce(comm, vectors[comm.rank]))
        sent.append(max(world.messages))
    assert sent[0] == sent[1]
