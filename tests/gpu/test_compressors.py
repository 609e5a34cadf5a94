"""Compressors on a device: the bits of the numba kernels, without a GPU."""

import itertools

import numpy as np
import pytest
from contract.compression import COMPRESSORS, SCHEMES, covering, exchanged, fits, planned, tensors_of
from contract.training import digits, session
from gpu.processor import GXX, Processor
from gpu.strict import Strict, inside

from hpcdl import registry
from hpcdl.aggregation.ring import ring
from hpcdl.compression.parts.protocol import Compression, Layout, to_device
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.nn.kernels.cupy.backend import backend_on
from hpcdl.nn.layers.affine import Linear
from hpcdl.nn.layers.elementwise import Flatten
from hpcdl.nn.replica import Replica
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.compressed.compressed import Compressed

pytestmark = pytest.mark.skipif(not GXX, reason="needs g++")

ABLE = [name for name in COMPRESSORS if registry.traits("compression", name, Compression).on_device]
ENCODERS = [name for name in ABLE if hasattr(registry.find("compression", name), "encode")]
SUMMABLE = [name for name in ABLE if hasattr(registry.find("compression", name), "rounds")]
SELECTORS = [name for name in ABLE if hasattr(registry.find("compression", name), "select")]
SIZES = [0, 1, 31, 32, 33, 100_003]


@pytest.fixture(scope="module")
def device():
    return Strict()


def both(name, size, dtype, device, **settings):
    """The compressor on the host and on the device."""
    fields = {"size": size, "tensors": tensors_of(size), "dtype": dtype, "ranks": 3, "seed": 4}
    make = registry.find("compression", name)
    return make(Layout(**fields), **settings), make(Layout(**fields, device=device), **settings)


def gradient(size, dtype, seed=0):
    """Normal numbers of many magnitudes, zeros of both signs among them."""
    random = np.random.default_rng(seed)
    drawn = random.standard_normal(size) * 10.0 ** random.integers(-12, 3, size)
    drawn[::7], drawn[3::11] = 0, -0.0
    return drawn.astype(dtype)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "size"), [*itertools.product(ENCODERS, SIZES)])
def test_messages_are_those_of_the_host(name, size, dtype, device):
    """Of the whole gradient and of a span that begins at an odd entry; so are what is kept and what is decoded."""
    for span in (slice(0, size), slice(min(5, size), size)):
        host, other = both(name, size, dtype, device)
        vector = gradient(size, dtype)[span]
        copy = device.asarray(vector)
        wires = [np.full(one.bound(span), 255, np.uint8) for one in (host, other)]
        lengths = [
            one.encode(span, x, wire, 3) for one, x, wire in zip((host, other), (vector, copy), wires, strict=True)
        ]
        assert lengths[0] == lengths[1]
        assert bits(wires[0]) == bits(wires[1])
        assert bits(vector) == bits(copy.held)
        into = gradient(size, dtype, 1)[span]
        copy = device.asarray(into)
        host.decode(span, wires[0][: lengths[0]], into)
        other.decode(span, wires[0][: lengths[0]], copy)
        assert bits(into) == bits(copy.held)


@pytest.mark.parametrize("fed_back", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "size"), [*itertools.product(SUMMABLE, SIZES)])
def test_vectors_are_those_of_the_host(name, size, dtype, fed_back, device):
    span, pair = slice(0, size), both(name, size, dtype, device)
    for step in range(2):
        vectors = [gradient(size, dtype, step), device.asarray(gradient(size, dtype, step))]
        residuals = [np.full(size, 7, dtype), device.asarray(np.full(size, 7, dtype))]
        rounds = [
            list(map(bits, map(plain, one.rounds(span, vector, residual if fed_back else None, step))))
            for one, vector, residual in zip(pair, vectors, residuals, strict=True)
        ]
        assert rounds[0] == rounds[1]
        assert bits(vectors[0]) == bits(vectors[1].held)
        assert bits(residuals[0]) == bits(residuals[1].held)


def plain(vector):
    return vector if isinstance(vector, np.ndarray) else inside(vector)


@pytest.mark.parametrize("settings", [{}, {"density": 0.3}])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "size"), [*itertools.product(SELECTORS, SIZES)])
def test_entries_are_those_of_the_host(name, size, dtype, settings, device):
    """Of some densities more entries than expected are found; the state is the host's too."""
    span, pair = slice(0, size), both(name, size, dtype, device, **settings)
    for step in range(3):
        vectors = [gradient(size, dtype, step), device.asarray(gradient(size, dtype, step))]
        found = [one.select(span, vector, step) for one, vector in zip(pair, vectors, strict=True)]
        assert bits(found[0].indices) == bits(found[1].indices)
        assert bits(found[0].values) == bits(found[1].values)
        assert bits(vectors[0]) == bits(vectors[1].held)
        for name_, state in pair[0].state.items():
            assert bits(state) == bits(pair[1].state[name_].held)


def test_a_threshold_that_no_entry_of_the_sample_reaches(device):
    """The mean of the few entries that are not zero."""
    pair = both("threshold", 90_000, "float32", device)
    vector = np.zeros(90_000, "float32")
    vector[[5, 70_001]] = 1, -3
    found = [
        one.select(slice(0, 90_000), x, 0) for one, x in zip(pair, (vector, device.asarray(vector)), strict=True)
    ]
    assert bits(found[0].indices) == bits(found[1].indices)
    assert bits(found[0].values) == bits(found[1].values)
    np.testing.assert_allclose(found[1].values, [-2], rtol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 40, 99])
@pytest.mark.parametrize("name", ABLE)
def test_values_that_are_not_finite_are_refused(name, place, wrong, device):
    _, compressor = both(name, 100, "float32", device)
    vector = gradient(100, "float32")
    vector[place] = wrong
    vector, span = device.asarray(vector), slice(0, 100)
    with pytest.raises(FloatingPointError, match=r"infinite|is -?(nan|inf)"):
        if name in SUMMABLE:
            next(compressor.rounds(span, vector, None, 0))
        elif name in SELECTORS:
            compressor.select(span, vector, 0)
        else:
            compressor.encode(span, vector, np.empty(compressor.bound(span), np.uint8), 0)


def test_a_sum_beyond_float16_is_refused(device):
    _, compressor = both("fp16", 3, "float32", device)
    rounds = compressor.rounds(slice(0, 3), device.asarray(np.full(3, 1e6, "float32")), None, 0)
    vector = next(rounds)
    assert (vector.held == 65504).all()
    with np.errstate(over="ignore"):
        vector += vector
    with pytest.raises(FloatingPointError, match="the sum exceeds"):
        next(rounds)


ANYWHERE = [name for name, traits in SCHEMES.items() if traits.memory == "any"]
PAIRS = [(name, scheme) for name in ABLE for scheme in ANYWHERE if fits(name, scheme)]


@pytest.mark.parametrize(("name", "scheme"), covering(PAIRS))
def test_sums_over_ranks_are_those_of_the_host(name, scheme, device):
    steps = np.array([[gradient(205, "float32", 10 * step + rank) for rank in range(3)] for step in range(2)])
    sums, _ = exchanged(planned(name, scheme), steps)
    others, sides = exchanged(planned(name, scheme), steps, device=device)
    assert bits(sums) == bits(others)
    assert {side.compressed.residual is None for side in sides} == {not planned(name, scheme).feeds_back}


@pytest.mark.parametrize("name", ["ef_sign", "dgc"])
def test_losses_of_compression_are_computed_on_the_device(name, device):
    """Residual norms and the fidelity of a watched step are those of the host, but for the order of sums."""
    rows = np.array([gradient(205, "float32", rank) for rank in range(3)])

    def fidelity(where):
        chosen = planned(name, "allgather")

        async def program(comm):
            def zeros(_name, size=205):
                return to_device(where, np.zeros(size, "float32"))

            layout = Layout(size=205, tensors=tensors_of(205), seed=5, device=where)
            side = Compressed(chosen, layout, zeros, lambda _: True, 1)
            row = to_device(where, rows[comm.rank])
            await side.reduce(comm, slice(0, 205), row, ring)
            found = await side.fidelity(comm, row)
            return [*found, *side.norms.rows()[0]]

        return in_process(3).run(program)

    np.testing.assert_allclose(fidelity(device), fidelity(None), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "scheme"), [("top_k", "allgather"), ("fp16", "ring"), ("terngrad", "parameter_server")]
)
def test_a_network_on_a_device_trains_compressed(name, scheme, monkeypatch):
    """Ranks stay equal, and the compressor's kernels are the device's."""
    data, kernels, launched = digits(), backend_on(Processor()), set()
    launch = kernels.device.launch
    monkeypatch.setattr(
        kernels.device, "launch", lambda source, *rest: (launched.add(source), launch(source, *rest))
    )
    sessions = [
        session(
            scheme,
            "float32",
            replica=Replica(
                [Flatten("flatten"), Linear("fc", data.classes)],
                data.shape,
                backend=kernels,
                dtype="float32",
                seed=1,
            ),
            compression=planned(name, scheme),
            steps=3,
        )
        for _ in range(2)
    ]
    in_process(2).run(lambda comm: layerwise(comm, sessions[comm.rank]))
    one, other = (side.replica.parameters for side in sessions)
    assert bits(one) == bits(other)
    assert any("compression" in source for source in launched)
