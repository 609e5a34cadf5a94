"""Kernels compared with PyTorch in float64, on shapes of published networks and on odd ones."""

import math

import numpy as np
import pytest

from hpcdl.nn.initial import gaussian
from hpcdl.nn.layers.affine import Convolution, LocallyConnected
from hpcdl.nn.layers.elementwise import Sigmoid
from hpcdl.nn.layers.normalization import LRN, BatchNorm
from hpcdl.nn.layers.pooling import AveragePooling, GlobalAverage, MaxPooling
from hpcdl.nn.replica import Replica

torch = pytest.importorskip("torch")
functional = torch.nn.functional

CLOSE = {"rtol": 1e-10, "atol": 1e-11}


def nchw(x):
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1))).requires_grad_()


def nhwc(x):
    return np.moveaxis(x.detach().numpy(), 1, -1)


def agree(tried, x, oracle):
    """Compare forward and input gradient with ``oracle``, a function of an NCHW tensor; return dy."""
    y = tried.forward(x)
    dy = np.random.default_rng(5).standard_normal(y.shape)
    dx = tried.backward(dy)
    theirs_x = nchw(x)
    theirs_y = oracle(theirs_x)
    theirs_y.backward(nchw(dy).detach())
    np.testing.assert_allclose(y, nhwc(theirs_y), **CLOSE)
    np.testing.assert_allclose(dx, nhwc(theirs_x.grad), **CLOSE)


@pytest.mark.parametrize(
    ("shape", "n", "arguments"),
    [
        ((35, 31, 3), 2, {"filters": 8, "kernel": 11, "stride": 4}),
        ((13, 13, 8), 2, {"filters": 12, "kernel": 5, "padding": 2, "groups": 2}),
        ((28, 20, 3), 1, {"filters": 6, "kernel": 7, "stride": 2, "padding": 3}),
        ((11, 11, 4), 3, {"filters": 8, "kernel": 3, "stride": 3}),
        ((9, 12, 6), 2, {"filters": 6, "kernel": 3, "padding": 1, "groups": 6}),
        ((7, 8, 10), 3, {"filters": 4, "kernel": 1}),
        ((7, 8, 10), 3, {"filters": 4, "kernel": 1, "stride": 2}),
        ((6, 5, 3), 1, {"filters": 2, "kernel": (2, 4), "stride": (1, 3), "padding": (1, 2)}),
        ((64, 64, 16), 3, {"filters": 16, "kernel": 3, "padding": 1}),
    ],
)
@pytest.mark.parametrize("biased", [True, False])
def test_convolution(shape, n, arguments, biased, probe):
    layer = Convolution("c", **arguments, bias=gaussian(1.0) if biased else None)
    tried = probe(layer, shape)
    x = np.random.default_rng(4).standard_normal((n, *shape))
    parameters = tried.parameters
    weight = nchw(parameters["weight"])
    bias = torch.from_numpy(parameters["bias"]).requires_grad_() if biased else None
    agree(
        tried,
        x,
        lambda t: functional.conv2d(t, weight, bias, layer.stride, layer.padding, groups=layer.groups),
    )
    np.testing.assert_allclose(tried.gradients["weight"], nhwc(weight.grad), **CLOSE)
    assert tried.gradients.keys() == ({"weight", "bias"} if biased else {"weight"})
    if biased:
        np.testing.assert_allclose(tried.gradients["bias"], bias.grad.numpy(), **CLOSE)


@pytest.mark.parametrize(
    ("shape", "n", "arguments"),
    [
        ((17, 15, 3), 2, {"filters": 8, "kernel": 10}),  # as DistBelief
        ((6, 7, 4), 3, {"filters": 5, "kernel": 3, "padding": 1}),
        ((9, 8, 2), 2, {"filters": 3, "kernel": 4, "stride": 3}),  # a rest at the edge
        ((6, 5, 3), 1, {"filters": 2, "kernel": (2, 4), "stride": (1, 3), "padding": (1, 2)}),
        ((4, 3, 5), 2, {"filters": 3, "kernel": 1}),
    ],
)
def test_locally_connected_is_a_product_per_unfolded_window(shape, n, arguments, probe):
    layer = LocallyConnected("u", **arguments, bias=gaussian(1.0))
    tried = probe(layer, shape)
    theirs = {name: torch.from_numpy(value).requires_grad_() for name, value in tried.parameters.items()}
    kernel, stride, padding = layer.window

    def oracle(t):
        unfolded = functional.unfold(t, kernel, 1, padding, stride)
        windows = unfolded.reshape(n, shape[2], *kernel, *layer.output(shape)[:2])
        return torch.einsum("ncrspq,pqkrsc->nkpq", windows, theirs["weight"]) + theirs["bias"].permute(2, 0, 1)

    agree(tried, np.random.default_rng(4).standard_normal((n, *shape)), oracle)
    for name, value in theirs.items():
        np.testing.assert_allclose(tried.gradients[name], value.grad.numpy(), **CLOSE)


def test_sigmoid_at_both_ends(kernels):
    stage = Replica([Sigmoid("s")], (5,), backend=kernels, dtype="float64").stages[0]
    y = kernels.to_host(stage.forward(kernels.asarray(np.array([[-1e4, -1.0, 0.0, 1.0, 1e4]]))))
    np.testing.assert_allclose(y, [[0, 1 / (1 + math.e), 0.5, 1 / (1 + math.exp(-1)), 1]], rtol=1e-14, atol=1e-14)


POOLS = [
    ((13, 13, 4), 3, 2, 0),
    ((14, 11, 3), 3, 2, 0),
    ((12, 9, 2), 2, 2, 0),
    ((7, 7, 2), 3, 1, 1),
    ((9, 14, 3), 3, 2, 1),
    ((10, 10, 2), 5, 3, 2),
    ((8, 7, 2), 2, 3, 0),
    ((8, 9, 2), 2, 3, 1),
    ((8, 8, 5), 8, 8, 0),
]


@pytest.mark.parametrize("mode", ["floor", "ceil"])
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), POOLS)
def test_max_pooling(shape, kernel, stride, padding, mode, probe):
    tried = probe(MaxPooling("p", kernel, stride=stride, padding=padding, mode=mode), shape)
    # whole numbers, so that windows have equal maxima
    x = np.random.default_rng(6).integers(-3, 3, (2, *shape)).astype(float)
    agree(tried, x, lambda t: functional.max_pool2d(t, kernel, stride, padding, ceil_mode=mode == "ceil"))


@pytest.mark.parametrize("mode", ["floor", "ceil"])
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), POOLS)
def test_average_pooling(shape, kernel, stride, padding, mode, probe):
    tried = probe(AveragePooling("p", kernel, stride=stride, padding=padding, mode=mode), shape)
    x = np.random.default_rng(7).standard_normal((2, *shape))
    agree(
        tried,
        x,
        lambda t: functional.avg_pool2d(
            t, kernel, stride, padding, ceil_mode=mode == "ceil", count_include_pad=True
        ),
    )


def test_the_largest_window_that_a_byte_can_index(probe):
    """Larger windows use another kernel."""
    for side in (16, 17):
        x = np.arange(side * side * 2, dtype=float).reshape(1, side, side, 2)
        agree(
            probe(MaxPooling("p", side), (side, side, 2)), x, lambda t, side=side: functional.max_pool2d(t, side)
        )


def test_global_average(probe):
    x = np.random.default_rng(8).standard_normal((3, 6, 5, 7))
    agree(probe(GlobalAverage("p"), (6, 5, 7)), x, lambda t: t.mean(dim=(2, 3)))


@pytest.mark.parametrize(("size", "channels"), [(5, 9), (3, 2), (1, 4), (9, 4)])
def test_local_response_normalisation(size, channels, probe):
    x = 3 * np.random.default_rng(9).standard_normal((2, 3, 4, channels))
    tried = probe(LRN("n", size, alpha=0.9, beta=0.75, k=2.0), (3, 4, channels))
    agree(tried, x, lambda t: functional.local_response_norm(t, size, alpha=0.9, beta=0.75, k=2.0))


@pytest.mark.parametrize("shape", [(5, 4, 6), (6,)])
def test_batch_norm_in_training_and_evaluation(shape, probe, kernels):
    tried = probe(BatchNorm("b", eps=1e-3, momentum=0.8, gamma=gaussian(1.0)), shape)
    kind = torch.nn.BatchNorm2d if len(shape) == 3 else torch.nn.BatchNorm1d
    theirs = kind(6, eps=1e-3, momentum=0.2).double()
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(tried.parameters["gamma"]))
    random = np.random.default_rng(10)
    for _ in range(3):
        agree(tried, 2 + 3 * random.standard_normal((4, *shape)), theirs)
        np.testing.assert_allclose(tried.gradients["gamma"], theirs.weight.grad.numpy(), **CLOSE)
        np.testing.assert_allclose(tried.gradients["beta"], theirs.bias.grad.numpy(), **CLOSE)
        theirs.zero_grad()
    running = np.concatenate([theirs.running_mean.numpy(), theirs.running_var.numpy()])
    np.testing.assert_allclose(kernels.to_host(tried.replica.state), running, **CLOSE)
    theirs.eval()
    x = random.standard_normal((3, *shape))
    np.testing.assert_allclose(tried.forward(x, train=False), nhwc(theirs(nchw(x))), **CLOSE)
    np.testing.assert_allclose(kernels.to_host(tried.replica.state), running, **CLOSE)
