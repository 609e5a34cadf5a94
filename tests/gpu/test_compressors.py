"""Compressors on a device: the bits of the numba kernels, without a GPU."""

import numpy as np
import pytest
from contract.compression import COMPRESSORS, SCHEMES, covering, exchanged, fits, planned, tensors_of
from contract.training import digits, session
from gpu.processor import GXX, Processor, Strict

from hpcdl import registry
from hpcdl.aggregation.ring import ring
from hpcdl.compression.parts.protocol import Compression, Layout, to_device
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.kernels.cupy.gpu import backend_on
from hpcdl.nn.layers import Flatten, Linear
from hpcdl.nn.replica import Replica
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.compressed import Compressed

pytestmark = pytest.mark.skipif(not GXX, reason="needs g++")

ABLE = [name for name in COMPRESSORS if registry.traits("compression", name, Compression).on_device]
ENCODERS = [name for name in ABLE if hasattr(registry.find("compression", name), "encode")]
SELECTORS = [name for name in ABLE if hasattr(registry.find("compression", name), "select")]
SIZES = [0, 1, 32, 33, 100_003]


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
    return np.ascontiguousarray(getattr(array, "held", array)).view(np.uint8).tobytes()


def made(compressor, span, vector, step, residual=None):
    """Return what a compressor sends of a vector: the length and bits of a message, or the bits of its vectors."""
    if hasattr(compressor, "rounds"):
        return [*map(bits, compressor.rounds(span, vector, residual, step))]
    if hasattr(compressor, "select"):
        return [*map(bits, compressor.select(span, vector, step))]
    wire = np.full(compressor.bound(span), 255, np.uint8)
    return compressor.encode(span, vector, wire, step), bits(wire)


TRIED = [*((name, {}) for name in ABLE), *((name, {"density": 0.3}) for name in SELECTORS)]
"""Of some densities more entries than expected are found."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "settings", "size"), [(*one, size) for one in TRIED for size in SIZES])
def test_what_is_sent_and_kept_is_as_on_the_host(name, settings, size, dtype, device):
    """Over steps, with residuals and without, of the whole gradient and of a span that begins at an odd entry."""
    for span, fed_back in [(slice(0, size), False), (slice(min(5, size), size), True)]:
        pair = both(name, size, dtype, device, **settings)
        for step in range(3):
            vectors = [put(gradient(size, dtype, step)[span]) for put in (np.copy, device.asarray)]
            residuals = [put(np.full(len(vectors[0]), 7, dtype)) for put in (np.copy, device.asarray)]
            sent = [
                made(compressor, span, vector, step, residual if fed_back else None)
                for compressor, vector, residual in zip(pair, vectors, residuals, strict=True)
            ]
            assert sent[0] == sent[1]
            assert bits(vectors[0]) == bits(vectors[1])
            assert bits(residuals[0]) == bits(residuals[1])
            states = [{key: bits(state) for key, state in compressor.state.items()} for compressor in pair]
            assert states[0] == states[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ENCODERS)
def test_messages_are_decoded_as_on_the_host(name, size, dtype, device):
    for span in (slice(0, size), slice(min(5, size), size)):
        host, other = both(name, size, dtype, device)
        wire, into = np.empty(host.bound(span), np.uint8), gradient(size, dtype, 1)[span]
        message, copy = wire[: host.encode(span, gradient(size, dtype)[span], wire, 3)], device.asarray(into)
        host.decode(span, message, into)
        other.decode(span, message, copy)
        assert bits(into) == bits(copy)


def test_a_threshold_that_no_entry_of_the_sample_reaches(device):
    """The mean of the few entries that are not zero."""
    host, other = both("threshold", 90_000, "float32", device)
    vector, span = np.zeros(90_000, "float32"), slice(0, 90_000)
    vector[[5, 70_001]] = 1, -3
    copy = device.asarray(vector)
    expected, found = host.select(span, vector, 0), other.select(span, copy, 0)
    assert [*map(bits, expected)] == [*map(bits, found)]
    np.testing.assert_allclose(found.values, [-2], rtol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 40, 99])
@pytest.mark.parametrize("name", ABLE)
def test_values_that_are_not_finite_are_refused(name, place, wrong, device):
    _, compressor = both(name, 100, "float32", device)
    vector = gradient(100, "float32")
    vector[place] = wrong
    with pytest.raises(FloatingPointError, match=r"infinite|is -?(nan|inf)"):
        made(compressor, slice(0, 100), device.asarray(vector), 0)


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
            side = Compressed(chosen, layout, zeros, lambda _: True)
            row = to_device(where, rows[comm.rank])
            await side.reduce(comm, slice(0, 205), row, ring)
            return await side.fidelity(comm, row)

        return in_process(3).run(program)

    np.testing.assert_allclose(fidelity(device), fidelity(None), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "scheme"), [("top_k", "allgather"), ("fp16", "ring"), ("terngrad", "parameter_server")]
)
def test_a_network_on_a_device_trains_compressed(name, scheme, monkeypatch):
    """Ranks stay equal, and the compressor's kernels are the device's."""
    data, kernels, launched = digits(), backend_on(Processor()), set()
    launch = kernels.device.launch
    noted = lambda source, *rest: (launched.add(source), launch(source, *rest))
    monkeypatch.setattr(kernels.device, "launch", noted)
    layers, chosen = [Flatten("flatten"), Linear("fc", data.classes)], planned(name, scheme)
    replicas = [Replica(layers, data.shape, backend=kernels, dtype="float32", seed=1) for _ in range(2)]
    sessions = [session(scheme, "float32", replica=one, compression=chosen, steps=3) for one in replicas]
    in_process(2).run(lambda comm: layerwise(comm, sessions[comm.rank]))
    assert bits(replicas[0].parameters) == bits(replicas[1].parameters)
    assert any("compression" in source for source in launched)
