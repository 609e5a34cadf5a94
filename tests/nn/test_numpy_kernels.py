"""numpy kernels: chunks, and the pool of activations; several bindings of the same layers."""

from itertools import pairwise

import numpy as np
import pytest
from contract.networks import with_classifiers

from hpcdl.nn.backend import Weights, backend
from hpcdl.nn.geometry import WindowGeometry
from hpcdl.nn.kernels.numpy import windows
from hpcdl.nn.kernels.numpy.activation_pool import _POOL, ALIGNMENT, _Pool, allocate
from hpcdl.nn.replica import Replica

GEOMETRY = WindowGeometry((9, 7, 4), (5, 4, 6), (3, 3), (2, 2), (1, 1), "float64", 2)


def run(x, dy, weight, bias):
    op = windows.Im2col(GEOMETRY)
    weights = Weights(weight, bias, np.full_like(weight, np.nan), np.full_like(bias, np.nan))
    y = op.forward(x, weights)
    return y, op.backward(dy, weights, needs_dx=True), weights.dweight, weights.dbias


def test_chunks_of_any_size_give_the_same(monkeypatch):
    """From one row of the 5 x 4 output, over parts of an image, to several images and all three at once."""
    for rows in [1, 4, 7, 8, 19, 20, 21, 45, 60, 1000]:
        random = np.random.default_rng(1)
        arguments = [random.standard_normal(s) for s in [(3, 9, 7, 4), (3, 5, 4, 6), (6, 3, 3, 2), (6,)]]
        whole = run(*arguments)
        monkeypatch.setattr(windows, "CHUNK_BYTES", 1)
        monkeypatch.setattr(windows, "CHUNK_ROWS", rows)
        for ours, expected in zip(run(*arguments), whole, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)


def test_memory_is_reused_when_the_last_array_on_it_is_gone():
    a = allocate((3, 5), "float32")
    address = a.ctypes.data
    assert address % ALIGNMENT == 0
    part = a[1:].reshape(-1)
    del a
    assert allocate((3, 5), "float32").ctypes.data != address
    del part
    assert allocate((3, 5), "float32").ctypes.data == address


def test_garbage_collection_during_an_allocation(monkeypatch):
    """Memory freed during an allocation must not change its result."""
    pool = _Pool()
    slabs = [pool.take(size) for size in (4000, 9000)]
    largest = max
    pool.returned.append(slabs[1])
    del slabs[1]

    def collect(*sizes):
        if slabs:
            pool.returned.append(slabs.pop())
            return 10_000
        return largest(sizes)

    monkeypatch.setattr("builtins.max", collect)
    slab = pool.take(8000)
    monkeypatch.undo()
    assert slab.size == 9000
    assert pool.take(4000).size == 4000


def test_a_step_leaves_no_activation_behind(zoo, batch, step):
    """Then a second replica, or a second step, needs no additional memory."""
    replica = Replica(zoo(), (9, 8, 3), backend=backend("numpy"), dtype="float64")
    images, labels = batch(4)
    idle = _POOL.in_use()
    for _ in range(2):
        step(replica, images, labels, 1.0)
        assert _POOL.in_use() == idle


class Steps:
    """A pool, and steps that allocate and free blocks of all sizes."""

    def __init__(self, *sizes):
        self.pool = _Pool()
        self._sizes = sizes

    def step(self, scale=1.0):
        """Addresses of its blocks."""
        held = [self.pool.take(round(scale * size)) for size in self._sizes]
        addresses = {slab.ctypes.data for slab in held}
        self.pool.returned.extend(held)
        return addresses


def test_a_smaller_batch_between_steps_needs_no_new_memory():
    """As with the last batch of a test set: blocks of the steps' size remain for the next step."""
    steps = Steps(5000, 90_000, 400_000)
    addresses = steps.step()
    assert not steps.step(1 / 7) & addresses
    assert steps.step() == addresses


SHAPE, CLASSES, IMAGES = (6, 6, 2), 3, 7


def made(kernels="numpy"):
    replica = Replica(with_classifiers(CLASSES), SHAPE, backend=backend(kernels), dtype="float64", seed=4)
    replica.reseed(1, 2)
    return replica


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(IMAGES, *SHAPE)), rng.integers(0, CLASSES, IMAGES)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("bounds", [(0, 7), (0, 3, 7), (0, 1, 2, 4, 7)])
@pytest.mark.parametrize("order", [1, -1])
def test_microbatches_add_up_to_the_batch(data, kernels, bounds, order, step):
    """All forwards precede all backwards; dropout draws one mask for the batch, whatever its division."""
    images, labels = data
    whole, split = made(kernels), made(kernels)
    expected, _ = step(whole, images, labels, 1 / IMAGES)
    parts = [slice(*pair) for pair in pairwise(bounds)]
    bound = split.bindings(len(parts))
    outputs = [images[part] for part in parts]
    for number, binding in enumerate(bound):
        for stage in binding:
            outputs[number] = stage.forward(outputs[number])
    split.gradients[:] = np.nan
    loss, first = 0.0, True
    for part, binding, y in list(zip(parts, bound, outputs, strict=True))[::order]:
        summed, _, dy = split.loss(y, labels[part], 1 / IMAGES)
        heads = [head for stage in binding for head in stage.heads]
        for head in heads:
            head.aim(labels[part], 1 / IMAGES)
        for stage in reversed(binding):
            dy = stage.backward(dy, first=first)
        loss += summed + sum(head.value for head in heads)
        first = False
    np.testing.assert_allclose(loss, expected, rtol=1e-13)
    np.testing.assert_allclose(split.gradients, whole.gradients, rtol=0, atol=1e-14)


def test_bindings_share_the_gradient_of_the_longest_layer():
    replica = made()
    assert not replica.layer_gradient.size
    replica.bindings(3)
    assert replica.layer_gradient.size == max(stage.span.stop - stage.span.start for stage in replica.stages)
