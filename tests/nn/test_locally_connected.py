"""Locally connected, sigmoid and subsampling layers, compared with PyTorch."""

import math

import numpy as np
import pytest

from hpcdl.nn.initial import gaussian
from hpcdl.nn.layers.affine import LocallyConnected
from hpcdl.nn.layers.elementwise import Sigmoid
from hpcdl.nn.replica import Replica

some = gaussian(1.0)

CASES = {
    "10x10 as DistBelief": ((17, 15, 3), 2, {"filters": 8, "kernel": 10}),
    "3x3 padded": ((6, 7, 4), 3, {"filters": 5, "kernel": 3, "padding": 1}),
    "a rest at the edge": ((9, 8, 2), 2, {"filters": 3, "kernel": 4, "stride": 3}),
    "uneven everything": ((6, 5, 3), 1, {"filters": 2, "kernel": (2, 4), "stride": (1, 3), "padding": (1, 2)}),
    "1x1": ((4, 3, 5), 2, {"filters": 3, "kernel": 1}),
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_output_is_a_product_per_unfolded_window(case, relu, probe):
    torch = pytest.importorskip("torch")
    shape, n, arguments = CASES[case]
    layer = LocallyConnected("u", **arguments, bias=some, relu=relu)
    tried = probe(layer, shape)
    random = np.random.default_rng(4)
    x = random.standard_normal((n, *shape))
    y = tried.forward(x)
    dy = random.standard_normal(y.shape)
    dx = tried.backward(dy)

    given = torch.from_numpy(x).requires_grad_()
    weight, bias = (torch.from_numpy(tried.parameters[name]).requires_grad_() for name in ("weight", "bias"))
    kernel, stride, padding = layer.window
    unfolded = torch.nn.functional.unfold(given.permute(0, 3, 1, 2), kernel, 1, padding, stride)
    windows = unfolded.reshape(n, shape[2], *kernel, *y.shape[1:3])
    theirs = torch.einsum("ncrspq,pqkrsc->npqk", windows, weight) + bias
    theirs = torch.relu(theirs) if relu else theirs
    theirs.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(dx, given.grad.numpy(), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(tried.gradients["weight"], weight.grad.numpy(), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(tried.gradients["bias"], bias.grad.numpy(), rtol=1e-10, atol=1e-11)


def test_sigmoid_at_both_ends(kernels):
    stage = Replica([Sigmoid("s")], (5,), backend=kernels, dtype="float64").stages[0]
    y = kernels.to_host(stage.forward(kernels.asarray(np.array([[-1e4, -1.0, 0.0, 1.0, 1e4]]))))
    np.testing.assert_allclose(y, [[0, 1 / (1 + math.e), 0.5, 1 / (1 + math.exp(-1)), 1]], rtol=1e-14, atol=1e-14)
