"""LeNet-5 and CIFAR-quick: parameter counts, PyTorch as oracle, and that they learn."""

import numpy as np
import pytest

from hpcdl.models.cifar_quick import cifar_quick
from hpcdl.models.lenet5 import lenet5
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica

BACKENDS = ["numpy"]

NETWORKS = [
    (lenet5, (28, 28, 1), 10, 431_080),
    (lenet5, (8, 8, 1), 10, 131_080),
    (lenet5, (16, 19, 3), 7, None),
    (cifar_quick, (32, 32, 3), 10, 145_578),
    (cifar_quick, (17, 20, 1), 4, None),
]


@pytest.fixture(params=BACKENDS)
def kernels(request):
    return backend(request.param)


@pytest.mark.parametrize(("network", "shape", "classes", "count"), [n for n in NETWORKS if n[3]])
def test_parameter_counts(network, shape, classes, count, kernels):
    replica = Replica(network(shape, classes), shape, backend=kernels)
    assert replica.parameters.size == count
    assert replica.output == (classes,)


def test_shapes_within_caffes_networks(kernels):
    stages = Replica(lenet5((28, 28, 1), 10), (28, 28, 1), backend=kernels).stages
    assert [s.output[:-1] for s in stages[:4]] == [(24, 24), (12, 12), (8, 8), (4, 4)]
    stages = Replica(cifar_quick((32, 32, 3), 10), (32, 32, 3), backend=kernels).stages
    assert [s.output[0] for s in stages if s.name.startswith("pool")] == [16, 8, 4]


def test_images_too_small_are_refused(kernels):
    with pytest.raises(ValueError, match=r"^pool2: kernel 2x2 is larger than the padded image 1x1$"):
        Replica(lenet5((2, 2, 1), 10), (2, 2, 1), backend=kernels)


def torch_network(torch, layers, replica):
    """The same network as a function of an NHWC tensor and of parameters taken from the replica's vector."""
    functional = torch.nn.functional
    vector = replica.backend.to_host(replica.parameters)
    leaves = {
        t.name: torch.from_numpy(vector[t.span].reshape(t.shape).copy()).requires_grad_() for t in replica.tensors
    }

    def run(x):
        x = x.permute(0, 3, 1, 2)
        for layer in layers:
            kind = type(layer).__name__
            weight, bias = leaves.get(f"{layer.name}.weight"), leaves.get(f"{layer.name}.bias")
            if kind == "Convolution":
                x = functional.conv2d(x, weight.permute(0, 3, 1, 2), bias, layer.stride, layer.padding)
            elif kind == "Linear":
                x = functional.linear(x, weight, bias)
            elif kind == "ReLU":
                x = functional.relu(x)
            elif kind == "Flatten":
                x = x.permute(0, 2, 3, 1).flatten(1)
            else:
                pool = {"MaxPooling": functional.max_pool2d, "AveragePooling": functional.avg_pool2d}[kind]
                window = layer.window
                x = pool(x, window.kernel, window.stride, window.padding, ceil_mode=window.mode == "ceil")
        return x

    return run, leaves


@pytest.mark.parametrize(("network", "shape", "classes", "count"), NETWORKS)
def test_loss_and_gradients_are_pytorchs(network, shape, classes, count, kernels):
    torch = pytest.importorskip("torch")
    layers = network(shape, classes)
    replica = Replica(layers, shape, backend=kernels, dtype="float64", seed=4)
    random = np.random.default_rng(5)
    images, labels = random.standard_normal((6, *shape)), random.integers(0, classes, 6)

    x = kernels.asarray(images)
    for stage in replica.stages:
        x = stage.forward(x)
    logits = kernels.to_host(x).copy()
    loss, correct, dy = replica.loss(x, kernels.asarray(labels), 1 / 6)
    for stage in reversed(replica.stages):
        dy = stage.backward(dy)

    run, leaves = torch_network(torch, layers, replica)
    theirs = run(torch.from_numpy(images))
    mean = torch.nn.functional.cross_entropy(theirs, torch.from_numpy(labels))
    mean.backward()
    np.testing.assert_allclose(logits, theirs.detach().numpy(), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(kernels.to_host(replica.predict(kernels.asarray(images))), logits, rtol=1e-12)
    assert loss / 6 == pytest.approx(mean.item(), rel=1e-11)
    assert correct == int((theirs.argmax(1).numpy() == labels).sum())
    gradients = kernels.to_host(replica.gradients)
    assert len(leaves) == len(replica.tensors) > 0
    for tensor in replica.tensors:
        expected = leaves[tensor.name].grad.numpy()
        ours = gradients[tensor.span].reshape(tensor.shape)
        assert np.any(expected)
        np.testing.assert_allclose(ours, expected, rtol=1e-8, atol=1e-11, err_msg=tensor.name)


@pytest.mark.parametrize(("network", "shape"), [(lenet5, (8, 8, 1)), (cifar_quick, (16, 16, 3))])
def test_learns_noisy_templates(network, shape, kernels):
    """Images are one of four random templates under noise; what is learnt must hold on images never seen."""
    random = np.random.default_rng(6)
    # Coarse patterns: average pooling all but removes what changes from pixel to pixel.
    coarse = random.standard_normal((4, shape[0] // 4, shape[1] // 4, shape[2]))
    templates = coarse.repeat(4, axis=1).repeat(4, axis=2)

    def draw(n):
        labels = random.integers(0, 4, n)
        return (templates[labels] + 0.7 * random.standard_normal((n, *shape))).astype(np.float32), labels

    replica = Replica(network(shape, 4), shape, backend=kernels, seed=1)
    unseen, truth = draw(200)

    def accuracy():
        logits = kernels.to_host(replica.predict(kernels.asarray(unseen)))
        return np.mean(logits.argmax(axis=1) == truth)

    assert accuracy() < 0.7
    losses = []
    for _ in range(60):
        images, labels = draw(32)
        x = kernels.asarray(images)
        for stage in replica.stages:
            x = stage.forward(x)
        loss, _, dy = replica.loss(x, kernels.asarray(labels), 1 / 32)
        losses.append(loss / 32)
        for stage in reversed(replica.stages):
            dy = stage.backward(dy)
        replica.parameters[...] -= 0.05 * replica.gradients
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert accuracy() > 0.95
