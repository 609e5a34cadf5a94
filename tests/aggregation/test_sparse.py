"""Sparse sums: the entries are those of dense arithmetic, no part is lost, and volumes are as stated."""

from functools import partial

import numpy as np
import pytest
from contract.aggregations import SPARSE, scheme
from contract.sparse import check_sparse, check_sparse_parts, drawn, fault

from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.entries import Series, dense
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process, simulated

RANKS = [1, 2, 3, 5, 8, 13]

ENTRY = 8


def summed(name, given, size, seed=0, series=None, **settings):
    """Return the ranks' results of one sum, and the world that has counted it."""
    series = series or [Series(size, max(len(one.values) for one in given)) for _ in given]
    world = in_process(len(given), seed)
    call = partial(scheme(name), **settings)
    return world.run(lambda comm: call(comm, given[comm.rank], series[comm.rank])), world


def entries(positions, values=None):
    positions = np.asarray(positions, np.int32)
    return Sparse(positions, np.ones(len(positions), np.float32) if values is None else np.float32(values))


def exact(given, size):
    return sum((dense(one, size) for one in given), np.zeros(size, np.float32))


def top(vector, k):
    """Return the vector with its k largest magnitudes only; the first of equal ones."""
    order = np.argsort(-np.abs(vector), kind="stable")[:k]
    kept = np.zeros_like(vector)
    kept[order] = vector[order]
    return kept


def layouts(ranks, size=400, k=20):
    """Positions of the ranks' entries that are hard for a scheme, by name."""
    return {
        "equal": [range(0, 7 * k, 7)] * ranks,
        "disjoint": [range(rank * k, (rank + 1) * k) for rank in range(ranks)],
        "in one region": [range(rank, rank + k) for rank in range(ranks)],
        "on one rank only": [range(k), *[()] * (ranks - 1)],
        "on the last rank only": [*[()] * (ranks - 1), range(size - k, size)],
        "none": [()] * ranks,
        "all": [range(size)] * ranks,
    }


@pytest.mark.parametrize("name", SPARSE)
def test_the_contract_of_a_sparse_scheme(name):
    assert check_sparse(scheme(name)) == ""
    assert check_sparse_parts(scheme(name)) == ""


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", SPARSE)
def test_hard_positions_lose_nothing(name, ranks):
    for what, positions in layouts(ranks).items():
        numbers = np.random.default_rng(ranks)
        given = [entries(one, numbers.integers(-9, 10, len(one))) for one in positions]
        series = [Series(400, max(map(len, positions))) for _ in given]
        for step in range(3):
            found, _ = summed(name, given, 400, step, series)
            assert not fault(found, given, 400), what
            assert name != "sparcml" or not any(len(one.rest.values) for one in found), "it is the dense sum"


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", SPARSE)
def test_other_types(name, dtype):
    given = [Sparse(one.indices, one.values.astype(dtype)) for one in drawn(5, 90, 7)]
    found, _ = summed(name, given, 90)
    assert {one.total.values.dtype for one in found} == {np.dtype(dtype)}
    assert not fault(found, given, 90)


def test_sparcml_switches_to_a_dense_vector_when_it_is_shorter():
    """Of 8 ranks with a third of the positions each, all but the first messages are dense."""
    size, third = 600, 200
    disjoint = [entries(range(rank % 3 * third, (rank % 3 + 1) * third)) for rank in range(8)]
    _, world = summed("sparcml", disjoint, size)
    assert max(world.bytes) == third * ENTRY + 2 * size * 4
    _, world = summed("sparcml", [entries(range(size))] * 8, size)
    assert max(world.bytes) == 3 * size * 4


def tree_of_pairs(vectors, k):
    """Global top-k by dense arithmetic: pairs at the distances 1, 2, 4, ... keep the k largest of their sum."""
    vectors, distance = list(vectors), 1
    while distance < len(vectors):
        for rank in range(0, len(vectors) - distance, 2 * distance):
            vectors[rank] = top(vectors[rank] + vectors[rank + distance], k)
        distance *= 2
    return vectors[0]


def test_gtopk_is_a_tree_of_top_k_sums():
    for ranks in RANKS:
        given = drawn(ranks, 300, 25, 1)
        found, _ = summed("gtopk", given, 300)
        assert np.array_equal(dense(found[0].total, 300), tree_of_pairs([dense(one, 300) for one in given], 25))


def test_ok_topk_has_the_largest_of_the_exact_sums():
    for ranks in RANKS:
        rows = drawn(ranks, 3000, 80)
        given = [Sparse(one.indices, one.values + np.float32(1 / 7) * one.indices) for one in rows]
        found, _ = summed("ok_topk", given, 3000)
        wanted = np.sort(np.abs(exact(given, 3000)))[::-1][:80]
        assert np.allclose(np.sort(np.abs(found[0].total.values))[::-1], wanted, rtol=1e-5)


def test_ok_topk_fills_up_to_k_with_equal_sums():
    """A compressor may send one magnitude only, as Strom's does."""
    for ranks in [2, 3, 8]:
        given = [entries(range(rank * 50, rank * 50 + 40), [1, -1] * 20) for rank in range(ranks)]
        series = [Series(50 * ranks, 40) for _ in given]
        sent = []
        for step in range(3):
            found, world = summed("ok_topk", given, 50 * ranks, step, series)
            assert len(found[0].total.values) == 40
            sent.append(max(world.messages))
        assert sent[1] == sent[2] < sent[0]  # the threshold is kept though none is above it


def test_ok_topk_computes_the_threshold_anew_when_it_fits_no_longer():
    """Gradients that grow a hundredfold, and shrink again."""
    for ranks in [3, 8]:
        series = [Series(2000, 60) for _ in range(ranks)]
        for step, scale in enumerate((1, 1, 100, 1)):
            given = [Sparse(one.indices, one.values * scale) for one in drawn(ranks, 2000, 60, step)]
            found, _ = summed("ok_topk", given, 2000, step, series, threshold_steps=1000)
            assert 45 <= len(found[0].total.values) <= 75
            assert not fault(found, given, 2000)


def test_ok_topk_balances_the_shares_of_the_ranks():
    """96 of the 100 largest sums are in the first of 8 regions, whose owner sends them to the others."""
    large = [range(12 * rank, 12 * rank + 12) for rank in range(8)]
    small = [range(100 + 88 * rank, 188 + 88 * rank) for rank in range(8)]
    given = [entries([*one, *other], [50.0] * 12 + [1.0] * 88) for one, other in zip(large, small, strict=True)]
    series = [Series(900, 100) for _ in given]
    for step in range(2):
        found, world = summed("ok_topk", given, 900, step, series)
        assert not fault(found, given, 900)
        assert (found[0].total.values == 50).sum() == 96
        assert len(found[0].total.values) == 100
    assert world.messages[0] == 7 + 3 + 7 + 3  # regions, numbers, balancing, gathering
    assert max(world.bytes) - 7 * 12 < 6 * 100 * 4


def gradients(ranks, size, k, step):
    """Return the top k of each rank's gradient: a common part, noise, and larger values in one layer."""
    common = np.random.default_rng(0).standard_normal(size)
    common[: size // 10] *= 4
    found = []
    for rank in range(ranks):
        noise = np.random.default_rng([rank, step]).standard_normal(size)
        vector = np.float32(common + noise)
        indices = np.sort(np.argpartition(-np.abs(vector), k)[:k]).astype(np.int32)
        found.append(Sparse(indices, vector[indices]))
    return found


def test_ok_topk_sends_less_than_its_bound():
    """Words sent by a rank, 2 for an entry; in the first sum, too, which computes regions and threshold."""
    for ranks in [2, 3, 5, 8, 64]:
        size, k = 100_000, 10_000
        series = [Series(size, k) for _ in range(ranks)]
        for step in range(2):
            given = gradients(ranks, size, k, step)
            _, world = summed("ok_topk", given, size, step, series)
            assert max(world.bytes) / 4 < 6 * k * (ranks - 1) / ranks
        if ranks == 64:
            allgather = ENTRY * k * (ranks - 1)
            assert 20 * max(world.bytes) <= allgather


@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_ok_topk_receives_evenly_though_positions_are_concentrated(ranks):
    """Each rank's entries are in a region of its own; regions by means of the ranks' own would be uneven."""
    k = 1600
    given = [entries(range(rank * 2000, rank * 2000 + k), np.arange(k)) for rank in range(ranks)]
    series = [Series(2000 * ranks, k) for _ in given]
    for _ in range(2):
        events = [[] for _ in range(ranks)]
        world = simulated(ranks, NETWORKS["ethernet-1g"], events=events)
        world.run(lambda comm: scheme("ok_topk")(comm, given[comm.rank], series[comm.rank]))
    received = [sum(size for _, label, *_, size in mine if label == "recv") for mine in events]
    assert max(received) / 4 < 6 * k * (ranks - 1) / ranks


def stated(name, ranks, size):
    lines = cost.costs(scheme(name))
    return {what: cost.cost(lines[f"{what}, busiest rank"], ranks, size) for what in ("Messages", "Bytes")}


def test_messages_and_bytes_are_as_stated():
    """Of equal positions; of Ok-Topk rank r has entries at r, r + p, ...; each region has as many of the largest."""
    for ranks in [1, 2, 3, 6, 8, 31, 64]:
        for name in ("sparcml", "gtopk"):
            given = [entries(range(0, 4000, 10), np.arange(400) + rank) for rank in range(ranks)]
            _, world = summed(name, given, 4000)
            found = {"Messages": max(world.messages), "Bytes": max(world.bytes)}
            assert found == stated(name, ranks, 400 * ENTRY)
        k = 64 * ranks
        given = [entries(range(rank, k * ranks, ranks), np.arange(k) % 64 + 1) for rank in range(ranks)]
        series = [Series(k * ranks, k) for _ in given]
        summed("ok_topk", given, k * ranks, 0, series)
        _, world = summed("ok_topk", given, k * ranks, 0, series)
        wanted = stated("ok_topk", ranks, k * ENTRY)
        assert max(world.messages) == wanted["Messages"]
        assert max(world.bytes) == pytest.approx(wanted["Bytes"], rel=0.02)


@pytest.mark.parametrize("network", ["ethernet-1g", "infiniband-edr"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 16, 64])
@pytest.mark.parametrize("name", SPARSE)
def test_simulated_time(name, ranks, network):
    """By sizes only where positions may be disjoint; with equal positions for sparcml."""
    k, model = 100 * ranks, NETWORKS[network]
    one = Sparse(phantom(k, np.int32), phantom(k)) if name != "sparcml" else entries(range(k))
    series = [Series(1000 * ranks, k) for _ in range(ranks)]
    for _ in range(2):
        world = simulated(ranks, model)
        found = world.run(lambda comm: scheme(name)(comm, one, series[comm.rank]))
    link = model.link
    time = cost.time(scheme(name), ranks, k * ENTRY, link.alpha, link.beta, model.gamma)
    if time is not None:
        assert world.now == pytest.approx(time, rel=1e-6)
    assert time is not None or ranks not in {2, 16, 64}
    assert {len(one.total.values) for one in found} == {k}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_simulation_of_sizes_sums_disjoint_entries(ranks):
    one = Sparse(phantom(50, np.int32), phantom(50))
    for size, wanted in ((10_000, 50 * ranks), (120, 120 if ranks > 1 else 50)):
        series = [Series(size, 50) for _ in range(ranks)]
        found = simulated(ranks, NETWORKS["ethernet-1g"]).run(
            lambda comm, series=series: scheme("sparcml")(comm, one, series[comm.rank])
        )
        assert {len(each.total.values) for each in found} == {wanted}
