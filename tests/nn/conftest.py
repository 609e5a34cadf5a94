"""Fixtures; tests with ``kernels`` run once per backend in a list of names."""

from contextlib import suppress

import numpy as np
import pytest
from contract import networks
from gpu.processor import GXX, Processor

from hpcdl.nn.backend import backend
from hpcdl.nn.composite import Concat, Residual
from hpcdl.nn.kernels.cupy.gpu import backend_on
from hpcdl.nn.layers import LRN, AveragePooling, BatchNorm, Convolution, Dropout, Flatten, Linear, MaxPooling, ReLU
from hpcdl.nn.replica import Replica

ON_PROCESSOR = "cupy on a processor"
"""GPU kernels run on the CPU, without cuDNN and cuBLAS: see tests/gpu/processor.py."""

BACKENDS = ["numpy", "numba"]
if GXX:
    BACKENDS.append(ON_PROCESSOR)
with suppress(ValueError):  # no GPU, or a library is missing
    BACKENDS.append(backend("cupy").name)

ZOO_SHAPE = (9, 8, 3)
ZOO_CLASSES = 5


def kernels_of(name):
    if name == ON_PROCESSOR:
        return backend_on(Processor())
    return backend(name, tf32=False) if name == "cupy" else backend(name)


@pytest.fixture(params=BACKENDS)
def kernels(request):
    return kernels_of(request.param)


def host(replica, array):
    """Return a copy of a device's array."""
    return replica.backend.to_host(array).copy()


class Probe:
    """A layer as second stage of a replica, so that it returns its input gradient; uses host arrays."""

    def __init__(self, layer, shape, kernels, dtype="float64", seed=3):
        self.replica = Replica([ReLU("before"), layer], shape, backend=kernels, dtype=dtype, seed=seed)
        self.stage = self.replica.stages[1]
        self._kernels = kernels
        self._dtype = dtype

    def forward(self, x, *, train=True):
        self.replica.reseed(7)
        x = self._kernels.asarray(np.ascontiguousarray(x, self._dtype))
        return self._kernels.to_host(self.stage.forward(x, train=train)).copy()

    def backward(self, dy):
        dy = self._kernels.asarray(np.ascontiguousarray(dy, self._dtype))
        return self._kernels.to_host(self.stage.backward(dy)).copy()

    def views(self, vector):
        """Return copies of a flat vector's tensors by their names within the layer."""
        host = self._kernels.to_host(vector)
        return {t.name.partition(".")[2]: host[t.span].reshape(t.shape).copy() for t in self.replica.tensors}

    @property
    def parameters(self):
        return self.views(self.replica.parameters)

    @property
    def gradients(self):
        return self.views(self.replica.gradients)


@pytest.fixture
def probe(kernels):
    def make(layer, shape, *, dtype="float64", seed=3):
        return Probe(layer, shape, kernels, dtype, seed)

    return make


@pytest.fixture
def zoo():
    """Return layers of every kind, for images of 9x8x3 and 5 classes."""

    def build(*, noisy=True, normalised=True):
        norm = (lambda name: [BatchNorm(name)]) if normalised else (lambda name: [])
        return [
            Convolution("conv1", 6, 3, padding=1, groups=3),
            LRN("lrn1", 3, alpha=0.5),
            ReLU("relu1"),
            MaxPooling("pool1", 3, stride=2),
            Residual(
                "block",
                [Convolution("a", 8, 3, padding=1), *norm("bn"), ReLU("relu"), Convolution("b", 8, 1)],
                [Convolution("project", 8, 1, bias=None)],
            ),
            ReLU("relu2"),
            Residual("identity", [Convolution("a", 8, 1), ReLU("relu")]),
            Concat(
                "mixed",
                [
                    [Convolution("1x1", 3, 1)],
                    [Convolution("reduce", 2, 1), ReLU("relu"), Convolution("3x3", 4, 3, padding=1)],
                    [AveragePooling("pool", 3, stride=1, padding=1, mode="floor"), Convolution("after", 2, 1)],
                    [],
                ],
            ),
            *([Dropout("drop1", 0.3)] if noisy else []),
            AveragePooling("pool2", 2),
            Flatten("flatten"),
            Linear("fc1", 12),
            *norm("bn1"),
            ReLU("relu3"),
            *([Dropout("drop2", 0.5)] if noisy else []),
            Linear("fc2", ZOO_CLASSES),
        ]

    return build


@pytest.fixture
def batch():
    """Return images and labels for the layers of ``zoo``."""

    def draw(n, *, seed=0, dtype="float64"):
        random = np.random.default_rng(seed)
        return random.standard_normal((n, *ZOO_SHAPE)).astype(dtype), random.integers(0, ZOO_CLASSES, n)

    return draw


@pytest.fixture
def step():
    """Return a function for one training step."""
    return networks.step
