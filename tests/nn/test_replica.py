"""Backends by name; flat vectors, stages, reproducibility, and independence of training from evaluation."""

from unittest.mock import Mock

import numpy as np
import pytest
from contract import networks

from hpcdl.nn.backend import backend
from hpcdl.nn.composite import Concat
from hpcdl.nn.layers import Convolution, Dropout, Linear, ReLU
from hpcdl.nn.replica import Replica

from .conftest import host


@pytest.fixture
def build(zoo, kernels):
    def make(*, dtype="float64", seed=1, **kinds):
        return Replica(zoo(**kinds), (9, 8, 3), backend=kernels, dtype=dtype, seed=seed)

    return make


def test_tensors_and_spans_partition_the_vector_in_forward_order(build):
    replica = build()
    end = 0
    for tensor in replica.tensors:
        assert tensor.span == slice(end, end + int(np.prod(tensor.shape)))
        assert tensor.span.start == tensor.offset
        end = tensor.span.stop
    assert end == replica.parameters.size == replica.gradients.size

    end = 0
    for stage in replica.stages:
        assert stage.span.start == end
        inside = [t for t in replica.tensors if end <= t.offset < stage.span.stop]
        assert all(t.name.split(".")[0] == stage.name for t in inside)
        end = stage.span.stop
    assert end == replica.parameters.size
    assert replica.parameters.ndim == replica.gradients.ndim == replica.state.ndim == 1


def test_parameters_are_views_of_the_flat_vector(build, batch):
    replica = build()
    images, _ = batch(4)
    images = replica.backend.asarray(images)
    before = host(replica, replica.predict(images))
    replica.parameters[replica.tensors[-1].span] += 1.0
    assert replica.tensors[-1].name == "fc2.bias"
    np.testing.assert_allclose(host(replica, replica.predict(images)), before + 1.0)
    replica.parameters[...] = 0.0
    np.testing.assert_array_equal(host(replica, replica.predict(images)), np.zeros((4, 5)))


def test_each_backward_overwrites_its_span_and_nothing_else(build, batch):
    replica = build()
    images, labels = map(replica.backend.asarray, batch(4))
    _, _, dy = replica.loss(networks.forward(replica, images), labels, 1.0)
    replica.gradients[...] = np.nan
    for stage in reversed(replica.stages):
        dy = stage.backward(dy)
        vector = host(replica, replica.gradients)
        assert np.all(np.isfinite(vector[stage.span.start :]))
        assert np.all(np.isnan(vector[: stage.span.start]))
    assert dy is None
    assert np.count_nonzero(vector) > 0.5 * vector.size


def test_an_empty_batch_has_no_gradient_and_moves_no_statistics(build, batch, step):
    replica = build()
    replica.gradients[...] = np.nan
    before = host(replica, replica.state)
    images, labels = batch(0)
    assert step(replica, images, labels, 1.0) == (0.0, 0)
    np.testing.assert_array_equal(host(replica, replica.gradients), 0.0)
    np.testing.assert_array_equal(host(replica, replica.state), before)


def test_initial_values_do_not_depend_on_the_rest_of_the_network(kernels):
    whole = Replica([Linear("a", 4), ReLU("r"), Linear("b", 3)], (4,), backend=kernels, seed=9)
    part = Replica([Linear("b", 3)], (4,), backend=kernels, seed=9)
    np.testing.assert_array_equal(host(whole, whole.parameters)[whole.stages[2].span], host(part, part.parameters))
    a, b = (t.span for t in whole.tensors if t.decay)
    assert not np.array_equal(host(whole, whole.parameters)[a][:12], host(whole, whole.parameters)[b])


def test_float32_starts_like_float64(build):
    single, double = build(dtype="float32"), build()
    assert single.parameters.dtype == single.gradients.dtype == single.state.dtype == "float32"
    expected = host(double, double.parameters).astype(np.float32)
    np.testing.assert_array_equal(host(single, single.parameters), expected)


def test_predicting_within_a_step_changes_nothing(build, batch, step):
    images, labels = batch(8)
    expected = build()
    step(expected, images, labels, 1.0)
    replica = build()
    images, labels = replica.backend.asarray(images), replica.backend.asarray(labels)
    other = replica.backend.asarray(batch(8, seed=50)[0])
    x = images
    for stage in replica.stages:
        x = stage.forward(x)
        replica.predict(other)
        replica.release_predictions()
    _, _, dy = replica.loss(x, labels, 1.0)
    for stage in reversed(replica.stages):
        replica.predict(other)
        replica.release_predictions()
        dy = stage.backward(dy)
    np.testing.assert_array_equal(host(replica, replica.gradients), host(expected, expected.gradients))
    np.testing.assert_array_equal(host(replica, replica.state), host(expected, expected.state))


@pytest.mark.parametrize("sizes", [[32, 7, 32], [3, 32, 3], [8, 0, 8]])
def test_changing_the_batch_size_has_no_later_effect(sizes, build, batch, step):
    """The last step has the gradient of a new replica with the same parameters."""
    replica = build()
    for n in sizes:
        images, labels = batch(n, seed=n)
        replica.reseed(0)
        step(replica, images, labels, 1.0)
    fresh = build()
    fresh.reseed(0)
    step(fresh, images, labels, 1.0)
    np.testing.assert_array_equal(host(replica, replica.gradients), host(fresh, fresh.gradients))


def test_invalid_networks():
    for layers, dtype, message in [
        ([ReLU("a"), ReLU("a")], "float32", r"^a: two layers of this name$"),
        ([Concat("m", [[Linear("x", 1)], [Linear("x", 1)]])], "float32", r"^m\.x\.weight: two layers"),
        ([Concat("m", [[Dropout("x")], [Dropout("x")]])], "float32", r"^m\.x: two layers"),
        ([], "float32", r"at least one layer"),
        ([Linear("l", 2)], "float8", r"^dtype 'float8' is unknown"),
        ([Convolution("c9", 2, 3)], "float32", r"^c9: needs an image"),
    ]:
        with pytest.raises(ValueError, match=message):
            Replica(layers, (4,), backend=backend("numpy"), dtype=dtype)


def test_stage_refuses_wrong_shapes_and_dtypes(build, batch, kernels):
    replica = build()
    images, _ = batch(4)
    first = replica.stages[0]
    with pytest.raises(ValueError, match=r"^conv1: input is float64 \(4, 8, 8, 3\), not float64 \(N, 9, 8, 3\)$"):
        first.forward(kernels.asarray(images[:, :8]))
    with pytest.raises(ValueError, match=r"^conv1: input is uint8"):
        first.forward(kernels.asarray(images.astype(np.uint8)))
    gradient = kernels.asarray(np.zeros((4, *first.output)))
    with pytest.raises(ValueError, match=r"^conv1: gradient has 4 images, last forward had none$"):
        first.backward(gradient)
    first.forward(kernels.asarray(images[:3]))
    with pytest.raises(ValueError, match=r"^conv1: gradient has 4 images, last forward had 3$"):
        first.backward(gradient)
    with pytest.raises(ValueError, match=r"^conv1: gradient is float64 \(3, 2\)"):
        first.backward(kernels.asarray(np.zeros((3, 2))))


def test_backends_that_are_unknown_or_lack_their_library_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"^backend 'torch' is unknown; available: [^\n]*numpy[^\n]*$"):
        backend("torch")
    missing = ModuleNotFoundError("No module named 'libgpu'")
    monkeypatch.setattr("hpcdl.nn.kernels.numpy.numpy", Mock(side_effect=missing))
    with pytest.raises(ValueError, match=r"^backend 'numpy' cannot be used here: No module named 'libgpu'$"):
        backend("numpy")
