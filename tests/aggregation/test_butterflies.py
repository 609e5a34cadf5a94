"""Bine and Swing: who exchanges what with whom, as the papers and the authors' code (PICO's libbine, MIT) have it."""

from functools import partial
from math import prod

import numpy as np
import pytest
from contract.aggregations import called, scheme
from contract.operands import as_wanted, operands
from contract.virtual_time import NETWORK

from hpcdl.aggregation.parts.patterns import swings
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process, simulated

RHOS = [1, -1, 3, -5, 11, -21]
"""Distances of libbine's ``pi``."""
REMAP = {4: [0, 2, 3, 1], 8: [0, 4, 6, 1, 3, 7, 5, 2], 16: [0, 8, 12, 2, 5, 14, 9, 7, 3, 11, 15, 1, 6, 13, 10, 4]}
"""libbine's ``remap_rank``: the block that a rank has after the reduce-scatter."""


def sent(collective, name, ranks, length, **settings):
    """Return each rank's messages in order: [(peer, bytes), ...]."""
    events = [[] for _ in range(ranks)]
    world = simulated(ranks, NETWORK, events=events)
    world.run(lambda comm: called(collective, name, comm, phantom(length), **settings))
    return [[(peer, size) for _, label, *_, peer, size in of if label == "send"] for of in events]


@pytest.mark.parametrize("name", ["bine", "swing"])
@pytest.mark.parametrize("ranks", [8, 16])
def test_an_allreduce_exchanges_with_libbine_s_peers(name, ranks):
    for rank, messages in enumerate(sent("allreduce", name, ranks, 4 * ranks)):
        peers = [(rank + (rho if rank % 2 == 0 else -rho)) % ranks for rho in RHOS[: ranks.bit_length() - 1]]
        sizes = [16 * ranks >> step + 1 for step in range(len(peers))]
        halves = list(zip(peers, sizes, strict=True))
        assert messages == [*halves, *halves[::-1]]
        [whole] = {size for _, size in sent("allreduce", name, ranks, 4 * ranks, optimal="latency")[rank]}
        assert whole == 16 * ranks


def test_a_rank_sums_libbine_s_block():
    assert {ranks: swings(ranks).place for ranks in REMAP} == REMAP


def negabinary(digits):
    """Return the number whose digits in base -2 are the bits of ``digits``."""
    return sum((-2) ** bit for bit in range(digits.bit_length()) if digits >> bit & 1)


@pytest.mark.parametrize("ranks", [8, 16, 64])
def test_a_broadcast_follows_the_tree_of_negabinary_numbers(ranks):
    """Step i of s: a rank with data sends to the rank whose s - i last digits are the others (negabinary tree)."""
    digits = {negabinary(number) % ranks: number for number in range(ranks)}
    has, wanted = {0}, [[] for _ in range(ranks)]
    for bits in range(ranks.bit_length() - 1, 0, -1):
        for rank in sorted(has):
            peer = negabinary(digits[rank] ^ (1 << bits) - 1) % ranks
            wanted[rank].append((peer, 40))
            has.add(peer)
    assert sent("broadcast", "bine", ranks, 10, optimal="latency") == wanted


def test_two_dimensions_take_turns_and_ports_begin_in_each():
    """Swing on a torus: of four parts on 4 x 4 ranks two begin in each dimension, two of them backward."""
    right, down = 1, 4
    assert [swings(16, (4, 4)).partners[step][0] for step in range(4)] == [right, down, 3 * right, 3 * down]
    begins = [swings(16, (4, 4), port).partners[0][0] for port in range(4)]
    assert begins == [right, down, 3 * right, 3 * down]
    assert [partners[0] for partners in swings(16, (8, 2)).partners] == [1, 2, 14, 6]


@pytest.mark.parametrize("optimal", ["bandwidth", "latency"])
def test_a_torus_sums_on_any_ports(optimal):
    for sides, ports in (([16], 1), ([4, 4], 4), ([2, 8], 3), ([1, 2, 4], 6), ([1], 2)):
        rows, expected = operands(prod(sides), 203)
        swing = partial(scheme("swing"), sides=sides, ports=ports, optimal=optimal)
        in_process(len(rows), 5).run(lambda comm, rows=rows, swing=swing: swing(comm, rows[comm.rank]))
        assert (rows == expected).all(), f"{sides}, {ports} ports"


def test_sides_that_are_no_powers_of_two_or_not_of_these_ranks_are_refused():
    for sides in ([3, 3], [2, 4], [], [-3, -3]):
        message = r"^sides = \[.*\] with 9 ranks: must be powers of two with this product$"
        with pytest.raises(ValueError, match=message):
            in_process(9).run(lambda comm, sides=sides: scheme("swing")(comm, np.zeros(4), sides=sides))


@pytest.mark.parametrize("collective", ["reduce", "broadcast"])
def test_whole_vectors_along_a_tree_on_any_ranks(collective):
    for ranks in (1, 2, 3, 6, 7, 16, 23):
        rows, _ = operands(ranks, 11)
        buffers = rows.copy()
        tree = partial(called, collective, "bine", optimal="latency")
        in_process(ranks, 2).run(lambda comm, tree=tree, to=buffers: tree(comm, to[comm.rank]))
        assert as_wanted(collective, buffers, rows), f"{ranks} ranks"
