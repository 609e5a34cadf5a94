"""What schemes borrow, against what each writes down on a whiteboard."""

import pytest

from hpcdl import registry
from hpcdl.cases.measuring.timed_collectives import scratch_bytes
from hpcdl.fabric.vectors import phantom

INBOXES = {
    "ring": lambda p: p * (1 / p),
    "butterfly": lambda p: p,
    "allgather": lambda p: p * (p - 1),
    "direct": lambda p: p * (p - 1) / p,
    "parameter_server": lambda _: 1,
    "native": lambda _: 0,
}
"""Vectors that all ranks borrow together."""


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("scheme", INBOXES)
def test_what_schemes_borrow(scheme, ranks):
    aggregate, vector = registry.find("aggregation", scheme), phantom(ranks * 1000, "float64")
    borrowed = scratch_bytes(lambda comm: aggregate(comm, vector), ranks)
    assert borrowed == pytest.approx(INBOXES[scheme](ranks) * vector.nbytes)


def test_what_is_given_back_is_lent_again():
    async def program(comm):
        for _ in range(3):
            with comm.scratch(10, phantom(0)), comm.scratch(5, phantom(0)):
                pass

    assert scratch_bytes(program, 1) == 4 * 15
