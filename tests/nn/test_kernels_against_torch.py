"""Kernels compared with PyTorch in float64, on shapes of published networks and on odd ones."""

import itertools
import math

import numpy as np
import pytest

from hpcdl.nn.layer import gaussian
from hpcdl.nn.layers import (
    LRN,
    AveragePooling,
    BatchNorm,
    Convolution,
    GlobalAverage,
    LocallyConnected,
    MaxPooling,
    Sigmoid,
)
from hpcdl.nn.replica import Replica

torch = pytest.importorskip("torch")
functional = torch.nn.functional

CLOSE = {"rtol": 1e-10, "atol": 1e-11}
some = gaussian(1.0)

POOLS = [
    *(((13, 13, 4), 3, 2, 0), ((14, 11, 3), 3, 2, 0), ((12, 9, 2), 2, 2, 0), ((7, 7, 2), 3, 1, 1)),
    *(((9, 14, 3), 3, 2, 1), ((10, 10, 2), 5, 3, 2), ((8, 7, 2), 2, 3, 0), ((8, 9, 2), 2, 3, 1)),
    *(((8, 8, 5), 8, 8, 0), ((6, 9, 2), 1, 3, 0)),  # of the last one a third row would start outside
]
LAYERS = [
    (Convolution("c", 8, 11, stride=4, bias=some), (35, 31, 3), 2),
    (Convolution("c", 12, 5, padding=2, groups=2, bias=some), (13, 13, 8), 2),
    (Convolution("c", 6, 7, stride=2, padding=3, bias=None), (28, 20, 3), 1),
    (Convolution("c", 8, 3, stride=3, bias=some), (11, 11, 4), 3),
    (Convolution("c", 6, 3, padding=1, groups=6, bias=None), (9, 12, 6), 2),
    (Convolution("c", 4, 1, bias=some), (7, 8, 10), 3),
    (Convolution("c", 4, 1, stride=2, bias=None), (7, 8, 10), 3),
    (Convolution("c", 2, (2, 4), stride=(1, 3), padding=(1, 2), bias=some), (6, 5, 3), 1),
    (Convolution("c", 16, 3, padding=1, bias=some), (64, 64, 16), 3),
    (LocallyConnected("u", 8, 10, bias=some), (17, 15, 3), 2),  # as DistBelief
    (LocallyConnected("u", 5, 3, padding=1, bias=some), (6, 7, 4), 3),
    (LocallyConnected("u", 3, 4, stride=3, bias=some), (9, 8, 2), 2),  # a rest at the edge
    (LocallyConnected("u", 2, (2, 4), stride=(1, 3), padding=(1, 2), bias=some), (6, 5, 3), 1),
    (LocallyConnected("u", 3, 1, bias=some), (4, 3, 5), 2),
    *(
        (kind("p", kernel, stride=stride, padding=padding, mode=mode), shape, 2)
        for kind, (shape, kernel, stride, padding), mode in itertools.product(
            (MaxPooling, AveragePooling), POOLS, ("floor", "ceil")
        )
    ),
    (GlobalAverage("p"), (6, 5, 7), 3),
    *((LRN("n", size, alpha=0.9, k=2.0), (3, 4, n), 2) for size, n in ((5, 9), (3, 2), (1, 4), (9, 4))),
]


def nchw(x):
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1))).requires_grad_()


def nhwc(x):
    return np.moveaxis(x.detach().numpy(), 1, -1)


def outputs(layer, x, shape, weight=None, bias=None):
    """Return PyTorch's outputs of an NCHW tensor."""
    if isinstance(layer, GlobalAverage):
        return x.mean(dim=(2, 3))
    if isinstance(layer, LRN):
        return functional.local_response_norm(x, layer.size, layer.alpha, layer.beta, layer.k)
    kernel, stride, padding = layer.window
    if isinstance(layer, Convolution):
        return functional.conv2d(x, weight.permute(0, 3, 1, 2), bias, stride, padding, groups=layer.groups)
    if isinstance(layer, LocallyConnected):
        unfolded = functional.unfold(x, kernel, 1, padding, stride)
        windows = unfolded.reshape(len(x), shape[2], *kernel, *layer.output(shape)[:2])
        return torch.einsum("ncrspq,pqkrsc->nkpq", windows, weight) + bias.permute(2, 0, 1)
    pool = functional.max_pool2d if isinstance(layer, MaxPooling) else functional.avg_pool2d
    return pool(x, kernel, stride, padding, ceil_mode=layer.mode == "ceil")


def agree(tried, x, oracle):
    """Compare outputs and input gradient with ``oracle``, a function of an NCHW tensor."""
    y = tried.forward(x)
    dy = np.random.default_rng(5).standard_normal(y.shape)
    dx = tried.backward(dy)
    theirs_x = nchw(x)
    theirs_y = oracle(theirs_x)
    theirs_y.backward(nchw(dy).detach())
    np.testing.assert_allclose(y, nhwc(theirs_y), **CLOSE)
    np.testing.assert_allclose(dx, nhwc(theirs_x.grad), **CLOSE)


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_outputs_and_gradients_are_pytorchs(number, probe):
    layer, shape, n = LAYERS[number]
    tried, random = probe(layer, shape), np.random.default_rng(4)
    parameters = {name: torch.from_numpy(value).requires_grad_() for name, value in tried.parameters.items()}
    x = random.standard_normal((n, *shape))
    if isinstance(layer, MaxPooling):  # whole numbers, so that windows have equal maxima
        x = np.rint(2 * x)
    agree(tried, x, lambda t: outputs(layer, t, shape, **parameters))
    assert tried.gradients.keys() == parameters.keys()
    for name, parameter in parameters.items():
        np.testing.assert_allclose(tried.gradients[name], parameter.grad.numpy(), **CLOSE)


def test_the_largest_window_that_a_byte_can_index(probe):
    """Larger windows use another kernel."""
    for side in (16, 17):
        layer, shape = MaxPooling("p", side), (side, side, 2)
        x = np.arange(side * side * 2, dtype=float).reshape(1, *shape)
        agree(probe(layer, shape), x, lambda t, layer=layer, shape=shape: outputs(layer, t, shape))


def test_sigmoid_at_both_ends(kernels):
    stage = Replica([Sigmoid("s")], (5,), backend=kernels, dtype="float64").stages[0]
    y = kernels.to_host(stage.forward(kernels.asarray(np.array([[-1e4, -1.0, 0.0, 1.0, 1e4]]))))
    np.testing.assert_allclose(y, [[0, 1 / (1 + math.e), 0.5, 1 / (1 + math.exp(-1)), 1]], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("shape", [(5, 4, 6), (6,)])
def test_batch_norm_in_training_and_evaluation(shape, probe, kernels):
    tried = probe(BatchNorm("b", eps=1e-3, momentum=0.8, gamma=some), shape)
    kind = torch.nn.BatchNorm2d if len(shape) == 3 else torch.nn.BatchNorm1d
    theirs = kind(6, eps=1e-3, momentum=0.2).double()
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(tried.parameters["gamma"]))
    random = np.random.default_rng(10)
    for _ in range(3):
        agree(tried, 2 + 3 * random.standard_normal((4, *shape)), theirs)
        for name, parameter in (("gamma", theirs.weight), ("beta", theirs.bias)):
            np.testing.assert_allclose(tried.gradients[name], parameter.grad.numpy(), **CLOSE)
        theirs.zero_grad()
    running = np.concatenate([theirs.running_mean.numpy(), theirs.running_var.numpy()])
    np.testing.assert_allclose(kernels.to_host(tried.replica.state), running, **CLOSE)
    theirs.eval()
    x = random.standard_normal((3, *shape))
    np.testing.assert_allclose(tried.forward(x, train=False), nhwc(theirs(nchw(x))), **CLOSE)
    np.testing.assert_allclose(kernels.to_host(tried.replica.state), running, **CLOSE)
