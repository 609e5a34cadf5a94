"""Exchanges: equal bits, nothing lost, corrupt messages refused; trainings with every compressor learn."""

from itertools import pairwise
from math import isnan
from operator import itemgetter

import numpy as np
import pytest
from contract.aggregations import SPARSE
from contract.compression import COMPRESSORS, SCHEMES, Side, covering, exchanged, fits, planned
from contract.compressors import Accumulating, Largest, Selected
from contract.generated import generated
from contract.tiny import replicas, tiny_session
from hypothesis import strategies as st

from hpcdl import registry
from hpcdl.compression.parts.protocol import Compression
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.replica import Tensor
from hpcdl.trace.recorder import Recorder
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.compressed import shards
from hpcdl.training.parts.plan import of_sizes
from hpcdl.training.synchronous import synchronous

RANKS = [*range(1, 10), 16]
PAIRS = [(compressor, scheme) for compressor in COMPRESSORS for scheme in SCHEMES if fits(compressor, scheme)]
GRID = [(ranks, size) for ranks in RANKS for size in sorted({0, 1, ranks - 1, 103})]
TRIED = 2
"""Places of the grid that a pair is tried at; all pairs of a compressor together are tried at all of it, nearly."""
CARRIERS = [scheme for scheme in SCHEMES if fits(Largest, scheme)]
"""Schemes that exchange messages."""
SCHEDULES = 20
"""Schedules of each place of the whole grid."""


def gradients(steps, ranks, size, seed=0):
    return np.random.default_rng([seed, ranks, size]).standard_normal((steps, ranks, size)).astype(np.float32)


def same_bits(sums):
    return (sums.view(np.uint32) == sums[:, :1].view(np.uint32)).all()


def unsent(sides, size):
    """Return the sum of the residuals of all ranks and servers."""
    left = np.zeros(size)
    for side in sides:
        left += side.compressed.state.get("accumulated", side.compressed.residual)
        for name, vector in side.vectors.items():
            if name.startswith("residual of sums"):
                begin = int(name.split()[-1])
                left[begin : begin + len(vector)] += vector
    return left


def check_bits(compressor, scheme, places, schedules):
    for ranks, size in places:
        rows, where = gradients(2, ranks, size), f"{ranks} ranks, {size} elements"
        first, *others = (exchanged(planned(compressor, scheme), rows, seed)[0] for seed in schedules(size))
        assert same_bits(first), where
        assert all((sums.view(np.uint32) == first.view(np.uint32)).all() for sums in others), where


@pytest.mark.parametrize(("compressor", "scheme"), covering(PAIRS))
def test_all_ranks_get_the_same_bits_in_all_schedules(compressor, scheme):
    number = PAIRS.index((compressor, scheme))
    places = [GRID[(11 * number + 13 * i) % len(GRID)] for i in range(TRIED)]
    check_bits(compressor, scheme, places, lambda _: (number, number + 1))


@pytest.mark.grid
@pytest.mark.parametrize(("compressor", "scheme"), PAIRS)
def test_all_ranks_get_the_same_bits_in_the_whole_grid(compressor, scheme):
    """Long vectors are exchanged in two schedules only: they take the same steps as short ones."""
    places = [(ranks, size) for ranks in RANKS for size in sorted({0, 1, ranks - 1, 100_003})]
    check_bits(compressor, scheme, places, lambda size: range(2 if size == 100_003 else SCHEDULES))


VARIANTS = [{}, {"ranks_per_node": 3, "inner": "bruck", "outer": "circulant"}, {"servers": 2}]
"""Settings of schemes."""

OWN = Compression(error_feedback=False, own_residual="accumulated")

CONSERVING = [
    *(
        (Largest, scheme, {"scheme_settings": settings})
        for scheme in CARRIERS
        for settings in VARIANTS
        if settings.keys() <= registry.settings_of(registry.find("aggregation", scheme)).keys()
    ),
    *(("top_k", scheme, {"density": 0.1}) for scheme in SCHEMES if fits("top_k", scheme)),
    *((Accumulating, scheme, {"traits": OWN}) for scheme in SPARSE),
]


@pytest.mark.parametrize(("compressor", "scheme", "settings"), CONSERVING)
@generated(
    5,
    *({"ranks": ranks, "size": size, "seed": 1} for ranks, size in GRID[::5]),
    ranks=st.integers(1, 17),
    size=st.integers(0, 300),
    seed=st.integers(0, 1000),
)
def test_sums_and_residuals_are_the_gradients(compressor, scheme, settings, ranks, size, seed):
    """Sum over ranks of (sent + residuals) = inputs, over several steps, in whole numbers; sparse sums return a rest."""
    rows = np.random.default_rng(seed).integers(-50, 51, (3, ranks, size)).astype(np.float32)
    sums, sides = exchanged(planned(compressor, scheme, **settings), rows, seed)
    assert (sums == sums[:, :1]).all()
    assert (sums[:, 0].sum(axis=0) + unsent(sides, size) == rows.sum(axis=(0, 1))).all()


@pytest.mark.parametrize("scheme", CARRIERS)
def test_pieces_at_once_are_as_one_after_the_other(scheme):
    """Buckets overlap, and are joined in any order."""
    rows = gradients(2, 5, 100)
    bounds = [(60, 100), (59, 59), (8, 59), (0, 8)]

    def run(seed, *, overlap):
        sides = [Side(planned(Largest, scheme), 100) for _ in range(5)]
        sums = rows.copy()

        async def program(comm):
            for step in sums:
                pieces = [sides[comm.rank].reduce(comm, step[comm.rank], *one) for one in bounds]
                if overlap:
                    started = [comm.start(piece) for piece in pieces]
                    pieces = [started[k] for k in np.random.default_rng(comm.rank).permutation(len(started))]
                for piece in pieces:
                    await piece

        in_process(5, seed).run(program)
        return sums

    expected = run(0, overlap=False)
    for seed in range(2):
        assert (run(seed, overlap=True) == expected).all()


class Tampering:
    """A communicator whose rank changes the bytes that it sends."""

    def __init__(self, comm, change):
        self._comm = comm
        self._change = change

    def __getattr__(self, name):
        return getattr(self._comm, name)

    async def exchange(self, outgoing, dest, incoming, source, tag=0):
        return await self._comm.exchange(self._change(outgoing.copy()), dest, incoming, source, tag)

    async def send(self, buffer, dest, tag=0):
        await self._comm.send(self._change(buffer.copy()), dest, tag)


def flipped(place):
    def change(message):
        message[place] ^= 16
        return message

    return change


def as_nan(message):
    message[:4] = 255
    return message


OF_BYTES = [*map(flipped, (0, 1, 4, 8, 12, 16, -1)), *(itemgetter(slice(end)) for end in (0, 3, 16, -8))]
OF_ENTRIES = [*map(flipped, (-1, -2)), *(itemgetter(slice(end)) for end in (-1, -4, 3)), as_nan]
"""Messages of entries begin with values and end with positions."""

CHANGED = [
    *((Largest, name, {}, OF_BYTES) for name in ("allgather", "bruck", "circulant", "sharded_parameter_server")),
    *(("top_k", name, {"density": 0.2}, OF_ENTRIES) for name in SPARSE),
    *(("top_k", name, {"density": 0.9}, [as_nan]) for name in SPARSE),  # SparCML sends dense vectors
]


@pytest.mark.parametrize(("compressor", "scheme", "settings", "changes"), CHANGED)
def test_a_corrupt_message_is_refused_and_names_its_sender(compressor, scheme, settings, changes):
    rows = gradients(1, 3, 203)[0]

    async def program(comm, change):
        whole = lambda m: change(m) if m.dtype == np.uint8 and len(m) else m  # not numbers that ranks agree on
        side = Side(planned(compressor, scheme, **settings), 203)
        await side.reduce(Tampering(comm, whole) if comm.rank == 1 else comm, rows[comm.rank])

    for change in changes:
        with pytest.raises(ValueError, match=r"message (of|from) rank 1: (corrupt|truncated)"):
            in_process(3).run(lambda comm, change=change: program(comm, change))


@pytest.mark.parametrize("ranks", [1, 2, 7, 16])
def test_servers_send_the_exact_sums_of_terngrad_back(ranks):
    """With the largest scaler of all ranks; a message has 2 bits per entry, a sum those of 2 p + 1 levels."""
    rows = gradients(2, ranks, 1600)
    chosen = planned("terngrad", "sharded_parameter_server", clip=0)
    sums, sides = exchanged(chosen, rows)
    shared = [side.compressed.compressor.shared for side in sides]
    assert all(same.keys() == shared[0].keys() for same in shared)
    for (start, stop), scalers in shared[0].items():
        cuts = sides[0].compressed.compressor.segments.cuts(slice(start, stop))
        for begin, end, scaler in zip(cuts[:-1], cuts[1:], scalers, strict=True):
            place = slice(start + begin, start + end)
            assert scaler == np.abs(rows[1, :, place]).max()
            levels = sums[1, :, place] / scaler
            np.testing.assert_allclose(levels, np.rint(levels), atol=1e-5)
    assert same_bits(sums)
    bits = 2 + int(np.ceil(np.log2(2 * ranks + 1)))
    content = 2 * (ranks - 1) / ranks * 1600 * bits / 8
    assert sent(chosen, rows[0]).bytes[0] == pytest.approx(content / 2, abs=(ranks - 1) * 80)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("compressor", [*COMPRESSORS, Largest])
def test_values_that_are_not_finite_are_refused_by_step_and_tensor(compressor, value):
    scheme = next(one for one in SCHEMES if fits(compressor, one))
    rows = gradients(2, 2, 30)
    rows[1, 1, 9] = value
    with pytest.raises(FloatingPointError, match=r"step 1: gradient of layer1\.weight: "):
        exchanged(planned(compressor, scheme), rows)


def sent(chosen, vectors):
    """Return the world of one exchange of the ranks' vectors."""
    world = in_process(len(vectors))
    sides = [Side(chosen, len(vector)) for vector in vectors]
    world.run(lambda comm: sides[comm.rank].reduce(comm, vectors[comm.rank]))
    return world


@pytest.mark.parametrize("scheme", [*CARRIERS, "ring"])
def test_sizes_without_values_send_the_same_bytes(scheme):
    """Messages of equal lengths; with 6 ranks the nodes of a hierarchy are equal too."""
    chosen = planned("fp16" if scheme == "ring" else Largest, scheme)
    real, sizes = sent(chosen, gradients(1, 6, 96)[0]), sent(of_sizes(chosen), [phantom(96)] * 6)
    assert real.bytes == sizes.bytes
    assert real.messages == sizes.messages


@pytest.mark.parametrize("scheme", SPARSE)
def test_sizes_of_sparse_sums_send_as_many_messages(scheme):
    """Each rank's largest entries are in a part of its own."""
    rows, chosen = np.zeros((3, 600), np.float32), planned(Selected, scheme)
    for rank in range(3):
        rows[rank, rank::24] = np.arange(1, 26)
    assert max(sent(chosen, rows).messages) == max(sent(of_sizes(chosen), [phantom(600)] * 3).messages)


@generated(
    100,
    {"ends": [3, 3, 9], "servers": 5},
    ends=st.lists(st.integers(0, 40), max_size=6),
    servers=st.integers(1, 9),
)
def test_shards_cover_a_piece_and_cut_no_tensor(ends, servers):
    edges = sorted({0, *ends})
    tensors = [Tensor("", begin + 5, (end - begin,), decay=False) for begin, end in pairwise(edges)]
    span = slice(5, 5 + edges[-1])
    for whole in (None, tensors):
        found = shards(span, servers, whole)
        assert len(found) == servers
        assert found[0].start == 0
        assert found[-1].stop == edges[-1]
        assert all(one.stop == other.start for one, other in pairwise(found))
        assert whole is None or {one.stop for one in found} <= set(edges)


TRAINED = 3


def trained(chosen, strategy=synchronous, steps=6, **settings):
    """Return the ranks' sessions and recorders after a training."""
    recorders = [Recorder(events=False) for _ in range(TRAINED)]
    keys = {"steps": steps, "compression": chosen, "evaluate_every": 1.0}
    start = np.random.default_rng(2).standard_normal(15)
    sessions = [
        tiny_session(recorder, replica=replica, start=start, **keys)
        for recorder, replica in zip(recorders, replicas(TRAINED), strict=True)
    ]
    if chosen is not None and not chosen.aggregation.sparse:
        for one in sessions:
            one.aggregate = chosen.scheme
    in_process(TRAINED, 1).run(lambda comm: strategy(comm, sessions[comm.rank], **settings))
    return sessions, [one.evaluations for one in recorders]


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_replicas_stay_equal_with_every_compressor(compressor):
    able = [scheme for scheme in SCHEMES if fits(compressor, scheme)]
    settings = {"density": 0.2} if compressor in ("top_k", "threshold", "dgc", "random_k") else {}
    for number, strategy in enumerate((synchronous, layerwise)):
        chosen = planned(compressor, able[number % len(able)], **settings)
        sessions, evaluations = trained(chosen, strategy)
        first = sessions[0].replica.parameters
        assert all((one.replica.parameters == first).all() for one in sessions)
        seen = evaluations[0][-1]
        assert 0 < seen.gradient_cosine <= 1 + 1e-9
        assert seen.gradient_error >= 0
        assert isnan(seen.residual_norm) == (not (chosen.feeds_back or chosen.traits.own_residual))


def test_dense_steps_lose_nothing_and_compressed_ones_are_measured_at_every_evaluation():
    chosen = planned("top_k", "allgather", density=0.2, warmup_steps=3)
    _, (evaluations, *_) = trained(chosen)
    early, late = evaluations[:1], evaluations[1:]
    assert early[-1].step <= 3 < late[0].step
    for one in early:
        assert (one.residual_norm, one.gradient_error) == (0, 0)
        assert one.gradient_cosine == pytest.approx(1)
    for one in late:
        assert one.residual_norm > 0
        assert 0.1 < one.gradient_cosine < 1
        assert 0 < one.gradient_error < 2
    _, (dense, *_) = trained(None)
    assert all(isnan(one.gradient_cosine) and isnan(one.residual_norm) for one in dense)


def test_memory_counts_residuals_and_vectors_of_compressors():
    sizes = {}
    for name in ("none", "top_k", "dgc"):
        chosen = None if name == "none" else planned(name, "bruck", density=0.2)
        sizes[name] = trained(chosen)[0][0].memory_bytes
    (without, *_), _ = trained(planned("top_k", "bruck", density=0.2, error_feedback=False))
    assert without.compressed.residual is None
    assert sizes["top_k"] - sizes["none"] == sizes["top_k"] - without.memory_bytes == 15 * 8
    assert sizes["dgc"] - sizes["none"] == 2 * 15 * 8
