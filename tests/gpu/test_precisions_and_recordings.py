"""Whole networks on the GPU backend's kernels: 16-bit precisions, loss scaling, recorded layers, flat optimizers."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from contract import networks
from gpu.processor import GXX, Processor

from hpcdl.nn.backend import backend
from hpcdl.nn.composite import Residual
from hpcdl.nn.kernels.cupy.device import EnginePlan, Uid
from hpcdl.nn.kernels.cupy.gpu import Gpu, backend_on
from hpcdl.nn.layers import BatchNorm, Convolution, Dropout, Flatten, Linear, MaxPooling
from hpcdl.nn.replica import Replica
from hpcdl.optim.parts.protocol import LossScaling
from hpcdl.optim.sgd import SGD

pytestmark = pytest.mark.skipif(not GXX, reason="needs g++")

SHAPE = (8, 7, 3)


def layers(*, ratio=0.0):
    return [
        Convolution("conv1", 8, 3, padding=1, relu=True),
        MaxPooling("pool1", 2),
        Residual("block", [Convolution("a", 8, 3, padding=1, bias=None), BatchNorm("bn")], relu=True),
        Flatten("flatten"),
        Dropout("drop", ratio),
        Linear("fc1", 16, relu=True),
        Linear("fc2", 5),
    ]


def replica(dtype="float32", *, ratio=0.0, graphs=False, records_products=True):
    kernels = backend_on(Processor(records_products=records_products), graphs=graphs)
    return Replica(layers(ratio=ratio), SHAPE, backend=kernels, dtype=dtype, seed=4)


def batch(n, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((n, *SHAPE)).astype("float32"), random.integers(0, 5, n)


def step(net, images, labels):
    return networks.step(net, images, labels, 1 / len(images))


def test_a_16_bit_network_is_nearly_the_32_bit_one():
    for dtype, tolerance in [("bfloat16", 0.05), ("float16", 0.02)]:
        exact, half = replica(), replica(dtype)
        assert (half.dtype, half.parameters.dtype, half.gradients.dtype, half.state.dtype) == ("float32",) * 4
        np.testing.assert_array_equal(half.parameters, exact.parameters)
        images, labels = batch(12)
        (loss, _), (found, _) = step(exact, images, labels), step(half, images, labels)
        assert found == pytest.approx(loss, rel=tolerance)
        error = np.linalg.norm(half.gradients - exact.gradients) / np.linalg.norm(exact.gradients)
        assert error < tolerance
        np.testing.assert_allclose(half.state, exact.state, rtol=tolerance, atol=tolerance)
        predicted = half.predict(half.backend.asarray(images))
        assert predicted.dtype == "float32"
        loss, _, gradient = half.loss(predicted, labels, 1.0)
        assert gradient.dtype == "float32"
        assert loss > 0


def test_processors_refuse_16_bits_in_one_line():
    for name, dtype in (("numpy", "bfloat16"), ("numba", "float16")):
        message = rf"^dtype '{dtype}' needs a GPU backend; '{name}' has 'float32' and 'float64'$"
        with pytest.raises(ValueError, match=message):
            Replica(layers(), SHAPE, backend=backend(name), dtype=dtype)


def test_float16_trains_behind_a_loss_scale():
    """An overflow costs a step and halves the scale; calm doubles it; what is learned is float32's."""
    nets = [replica(), replica("float16")]
    optimizers = [SGD(momentum=0.9), LossScaling(SGD(momentum=0.9), nets[1], scale=2.0**40, growth_interval=8)]
    losses = []
    for net, optimizer in zip(nets, optimizers, strict=True):
        losses.append([])
        while optimizer.steps < 30:
            images, labels = batch(20, optimizer.steps % 3)
            with np.errstate(all="ignore"):
                losses[-1].append(step(net, images, labels)[0] / 20)
            optimizer.update(net.parameters, net.gradients, 0.05)
    scaling = optimizers[1]
    assert scaling.skipped > 0
    assert nets[1].loss_scale <= 2.0 ** (40 - scaling.skipped + 30 // 8)
    assert np.isfinite(nets[1].parameters).all()
    assert losses[0][-1] < 0.5 * losses[0][0]
    assert losses[1][-1] == pytest.approx(losses[0][-1], abs=0.05)
    assert set(scaling.state) == {"velocity"}


@pytest.mark.parametrize("records_products", [True, False])
def test_recorded_layers_do_what_they_did(records_products):
    """To the last bit, whatever the batch, with an evaluation in between; images at another address each time.

    CuPy does not let cuBLAS be recorded: layers that multiply by it run each time.
    """
    plain = replica(ratio=0.4)
    recorded = replica(ratio=0.4, graphs=True, records_products=records_products)
    for number, size in enumerate([6, 6, 6, 4, 6, 4, 4, 0, 4, 6]):
        images, labels = batch(size, number) if size else (np.zeros((0, *SHAPE), "float32"), np.zeros(0, int))
        outcomes = []
        for net in (plain, recorded):
            net.reseed(1, number)
            x = networks.forward(net, net.backend.asarray(images))
            seen = net.predict(net.backend.asarray(batch(5, 99)[0]))
            outcomes.append((*net.loss(x, labels, 0.5)[:2], seen))
            networks.backward(net, x, labels, 0.5)
            net.parameters -= 0.01 * net.gradients
        assert outcomes[0][:2] == outcomes[1][:2], number
        np.testing.assert_array_equal(outcomes[0][2], outcomes[1][2])
        np.testing.assert_array_equal(plain.gradients, recorded.gradients)
        np.testing.assert_array_equal(plain.state, recorded.state)


def test_a_forward_without_a_backward_is_recorded_again():
    plain, recorded = replica(), replica(graphs=True)
    images, labels = batch(6)
    for net in (plain, recorded):
        step(net, images, labels)
        for _ in range(3):
            networks.forward(net, net.backend.asarray(images))
        step(net, images, labels)
        step(net, images, labels)
    np.testing.assert_array_equal(plain.gradients, recorded.gradients)


def test_what_is_recorded_is_not_run_again():
    class Counted:
        calls = 0

        def forward(self, x, train):
            self.calls += 1
            return x.copy()

        def backward(self, dy, needs_dx):
            return dy.copy()

    counted = Counted()
    bound = backend_on(Processor(), graphs=True).record(counted)
    for _ in range(5):
        bound.forward(np.ones(3), train=True)
        bound.backward(np.ones(3), needs_dx=True)
    assert counted.calls == 2


def test_a_failed_recording_leaves_the_stream_to_others():
    """Before, the stream went on capturing, and every later case of the process failed."""
    stream = SimpleNamespace(capturing=False)
    stream.begin_capture = lambda _mode: setattr(stream, "capturing", True)
    stream.end_capture = lambda: setattr(stream, "capturing", False)
    runtime, recordings = SimpleNamespace(streamCaptureModeRelaxed=2), SimpleNamespace(malloc=0)
    cuda = SimpleNamespace(using_allocator=lambda _: nullcontext(), runtime=runtime)
    device = SimpleNamespace(_cupy=SimpleNamespace(cuda=cuda), _stream=stream, _recordings=recordings)
    with pytest.raises(ZeroDivisionError):
        Gpu.capture(device, lambda: 1 / 0)
    assert not stream.capturing


def test_tensors_of_plans_are_numbered_by_plain_ints():
    """cuDNN's frontend takes every other key, an IntEnum too, for a tensor of its own."""
    given = {}
    graph = SimpleNamespace(execute=lambda addresses, _workspace, handle: given.update(addresses))
    device = SimpleNamespace(_workspace=np.empty(0), address=lambda array: array.ctypes.data, _handle=None)
    array = np.zeros(3)
    Gpu.execute(device, EnginePlan(graph, 0), {Uid.X: array})
    assert given == {1: array.ctypes.data}
    assert [type(number) for number in given] == [int]
