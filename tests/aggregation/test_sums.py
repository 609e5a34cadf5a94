"""Every aggregation sums, exactly, and alike on all ranks: at any number of ranks, length and interleaving."""

import numpy as np
import pytest
from contract.aggregations import SCHEMES, SEGMENTED, scheme
from contract.operands import awkward_lengths, operands

from hpcdl.fabric.inprocess import in_process

RANKS = [*range(1, 18), 32, 64]
SEEDS = range(20)

ALL_SCHEDULES = 9
"""With so many ranks each length is summed in all 20 schedules; with more the 20 are dealt out among the lengths."""

MOST_KEPT = 1 << 28
"""Bytes that all ranks of an allgather of vectors may keep: 64 times 64 long vectors would be more than many machines have."""


def lengths(name, ranks):
    kept = 4 * ranks * ranks if name in {"allgather", "bruck"} else 0
    return [length for length in awkward_lengths(ranks) if length * kept <= MOST_KEPT]


def aggregate(name, rows, seed, /, **settings):
    """Each rank has a row; in the end all should be the sum."""
    in_process(len(rows), seed).run(lambda comm: scheme(name)(comm, rows[comm.rank], **settings))


def aggregate_pieces(name, rows, seed):
    """The same, as buckets of one gradient are: by several programs at once, joined in any order."""

    async def program(comm):
        mine = rows[comm.rank]
        pieces = [mine[:1], mine[1:1], mine[1:300], mine[300:302], mine[302:900]]
        tasks = [comm.start(scheme(name)(comm, piece)) for piece in pieces]
        await scheme(name)(comm, mine[900:])
        for k in np.random.default_rng(comm.rank).permutation(len(tasks)):
            await tasks[k]

    in_process(len(rows), seed).run(program)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", SCHEMES)
def test_sums_whole_numbers_exactly(name, ranks):
    fitting = lengths(name, ranks)
    for at, length in enumerate(fitting):
        rows, expected = operands(ranks, length)
        buffers = np.empty_like(rows)
        for seed in SEEDS if ranks <= ALL_SCHEDULES else SEEDS[at :: len(fitting)]:
            buffers[:] = rows
            aggregate(name, buffers, seed)
            assert (buffers == expected).all(), f"{length} elements, seed {seed}"


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("name", SCHEMES)
def test_all_ranks_get_the_same_bits(name, ranks):
    """Sums of any numbers depend on the order of adding; ranks that train together must not differ by it.

    Nor must runs: a training is repeated to the last bit.
    """
    rows = np.random.default_rng(ranks).standard_normal((ranks, 1003)).astype(np.float32)
    exact = rows.sum(axis=0, dtype=np.float64)
    runs = np.stack([rows] * 5)
    for seed, buffers in enumerate(runs):
        aggregate(name, buffers, seed)
    np.testing.assert_allclose(runs[0, 0], exact, atol=1e-5)
    bits = runs.view(np.uint32)
    assert (bits == bits[0, 0]).all()


@pytest.mark.parametrize("dtype", ["float64", "int64"])
@pytest.mark.parametrize("name", SCHEMES)
def test_sums_other_types(name, dtype):
    rows, expected = operands(5, 103, dtype)
    aggregate(name, rows, 0)
    assert (rows == expected).all()


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", SCHEMES)
def test_several_at_once(name, ranks):
    rows, expected = operands(ranks, 1000)
    for seed in SEEDS:
        buffers = rows.copy()
        aggregate_pieces(name, buffers, seed)
        assert (buffers == expected).all(), f"seed {seed}"


@pytest.mark.parametrize("name", SCHEMES)
def test_sums_over_a_part_of_the_ranks(name):
    rows, _ = operands(9, 50)
    expected = [rows[[r for r in range(9) if r % 4 == rank % 4]].sum(axis=0) for rank in range(9)]

    async def program(comm):
        part = await comm.split(comm.rank % 4, -comm.rank)
        await scheme(name)(part, rows[comm.rank])

    in_process(9, 1).run(program)
    assert (rows == expected).all()


@pytest.mark.parametrize("ranks", [1, 2, 5, 16])
@pytest.mark.parametrize("length", [0, 3, 100])
def test_none_leaves_every_rank_its_own(ranks, length):
    rows, _ = operands(ranks, length)
    untouched = rows.copy()
    world = in_process(ranks)
    world.run(lambda comm: scheme("none")(comm, rows[comm.rank]))
    assert (rows == untouched).all()
    assert world.messages == [0] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("arity", [1, 2, 3, 20])
def test_a_tree_of_any_arity(ranks, arity):
    rows, expected = operands(ranks, 20)
    aggregate("tree", rows, 2, arity=arity)
    assert (rows == expected).all()


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("length", [0, 1, 20])
def test_any_number_of_servers(ranks, length):
    for servers in range(1, ranks + 1):
        rows, expected = operands(ranks, length)
        aggregate("sharded_parameter_server", rows, 3, servers=servers)
        assert (rows == expected).all()


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("tree", "arity", 0),
        ("sharded_parameter_server", "servers", 0),
        ("sharded_parameter_server", "servers", 4),
        *((name, "segment_bytes", value) for name in SEGMENTED for value in (-1, 0, 7)),
        ("torus", "rows", 0),
        ("torus", "rows", -1),
        ("torus", "rows", 2),
        ("torus", "rows", 6),
        *((name, "ranks_per_node", value) for name in ("hierarchical", "leader") for value in (0, -2)),
        *(
            (name, part, scheme)
            for name in ("hierarchical", "leader")
            for part in ("inner", "outer")
            for scheme in ("none", "rng", "torus", "leader", "hierarchical")
        ),
    ],
)
def test_impossible_settings(name, setting, value):
    world = in_process(3)
    with pytest.raises(ValueError, match=f"^{setting} = {value!r}[^\n]*$"):
        world.run(lambda comm: scheme(name)(comm, np.zeros(5), **{setting: value}))
    assert not any(world.messages)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 13])
@pytest.mark.parametrize("length", [0, 1, 5, 100, 1003])
@pytest.mark.parametrize("name", SEGMENTED)
def test_segments_of_any_length(name, length, ranks):
    for segment_bytes in (8, 12, 100, 4 * length + 8):
        for seed in range(3):
            rows, expected = operands(ranks, length)
            aggregate(name, rows, seed, segment_bytes=segment_bytes)
            assert (rows == expected).all(), segment_bytes


PLAIN = [name for name in SCHEMES if name not in {"hierarchical", "leader", "torus"}]


@pytest.mark.parametrize(("where", "ranks_per_node"), [("outer", 3), ("inner", 4)])
@pytest.mark.parametrize("scheme", PLAIN)
@pytest.mark.parametrize("name", ["hierarchical", "leader"])
def test_any_scheme_across_nodes_and_inside(name, scheme, where, ranks_per_node):
    for ranks in (1, 4, 7, 12):
        rows, expected = operands(ranks, 23)
        aggregate(name, rows, 4, **{where: scheme, "ranks_per_node": ranks_per_node})
        assert (rows == expected).all(), ranks


@pytest.mark.parametrize("ranks", [*range(1, 13), 31])
@pytest.mark.parametrize("length", [0, 2, 50])
@pytest.mark.parametrize("name", ["hierarchical", "leader"])
def test_nodes_of_any_size_also_uneven_ones(name, length, ranks):
    for ranks_per_node in range(1, ranks + 3):
        rows, expected = operands(ranks, length)
        aggregate(name, rows, ranks_per_node, ranks_per_node=ranks_per_node)
        assert (rows == expected).all(), ranks_per_node


@pytest.mark.parametrize("ranks", [1, 2, 5, 6, 12, 16])
@pytest.mark.parametrize("length", [0, 2, 50])
def test_a_torus_of_any_shape(length, ranks):
    for rows in (rows for rows in range(1, ranks + 1) if ranks % rows == 0):
        vectors, expected = operands(ranks, length)
        aggregate("torus", vectors, rows, rows=rows)
        assert (vectors == expected).all(), rows


def test_a_torus_of_a_prime_number_of_ranks_is_a_ring():
    vectors, _ = operands(7, 50)
    sent = []
    for name in ("torus", "ring"):
        world = in_process(7)
        world.run(lambda comm, name=name: scheme(name)(comm, vectors[comm.rank].copy()))
        sent.append((world.messages, world.bytes))
    assert sent[0] == sent[1]


def test_parts_are_split_off_once():
    """By several programs at once, too: communicators are scarce."""
    rows, _ = operands(6, 40)
    splits = []

    async def program(comm):
        split = comm.split
        comm.split = lambda *where: splits.append(where) or split(*where)
        for _ in range(3):
            tasks = [comm.start(scheme("hierarchical")(comm, piece)) for piece in np.split(rows[comm.rank], 4)]
            await scheme("hierarchical")(comm, rows[comm.rank][:0])
            for task in tasks:
                await task

    in_process(6).run(program)
    assert len(splits) == 2 * 6


@pytest.mark.parametrize("ranks", [2, 3, 5, 13])
def test_an_allgather_adds_in_the_order_of_the_ranks(ranks):
    rows = np.random.default_rng(ranks).standard_normal((ranks, 100))
    expected = rows[0].copy()
    for row in rows[1:]:
        expected += row
    aggregate("allgather", rows, 0)
    assert (rows == expected).all()
