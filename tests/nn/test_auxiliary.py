"""Auxiliary classifiers: their parts of loss and gradients, and their absence in evaluation."""

import numpy as np
import pytest

from hpcdl.nn.layers.composite import Auxiliary, Concat
from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.elementwise import Dropout, Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.pooling import GlobalAverage
from hpcdl.nn.replica import Replica

SHAPE, CLASSES = (4, 5, 2), 3


def network(*, heads=True, weight=0.3):
    first = [Convolution("conv", 3, 3, relu=True), Flatten("flatten"), Linear("fc", CLASSES)]
    return [
        Convolution("conv1", 4, 3, padding=1, relu=True),
        *([Auxiliary("loss1", first, weight=weight)] if heads else []),
        Convolution("conv2", 4, 3, padding=1, relu=True),
        *([Auxiliary("loss2", [GlobalAverage("pool"), Linear("fc", CLASSES)])] if heads else []),
        Flatten("flatten"),
        Linear("fc", CLASSES),
    ]


@pytest.fixture
def build(kernels):
    def make(layers, *, dtype="float64"):
        return Replica(layers, SHAPE, backend=kernels, dtype=dtype, seed=1)

    return make


@pytest.fixture
def given():
    random = np.random.default_rng(3)
    return random.standard_normal((6, *SHAPE)), random.integers(0, CLASSES, 6)


def host(replica, array):
    return replica.backend.to_host(array).copy()


def test_gradients_are_those_of_the_total_loss(build, given, step, kernels):
    replica = build(network())
    loss, _ = step(replica, *given, 1.0)
    gradient, start = host(replica, replica.gradients), host(replica, replica.parameters)
    assert {t.name for t in replica.tensors} >= {"loss1.conv.weight", "loss1.fc.bias", "loss2.fc.weight"}
    random = np.random.default_rng(4)
    for tensor in replica.tensors:
        direction = np.zeros_like(start)
        direction[tensor.span] = random.standard_normal(direction[tensor.span].size)
        direction *= 1e-6 / np.linalg.norm(direction)
        ends = []
        for parameters in (start + direction, start - direction):
            replica.parameters[...] = kernels.asarray(parameters)
            ends.append(step(replica, *given, 1.0)[0])
        assert (ends[0] - ends[1]) / 2 == pytest.approx(gradient @ direction, rel=1e-4, abs=1e-13), tensor.name
        assert ends[0] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("weight", [0.3, 2.0])
def test_pytorch_has_the_same_loss_and_gradients(weight, build, given, step):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    replica = build(network(weight=weight))
    images, labels = given
    loss, correct = step(replica, images, labels, 1 / 6)

    vector = host(replica, replica.parameters)
    leaves = {t.name: torch.from_numpy(vector[t.span].reshape(t.shape)).requires_grad_() for t in replica.tensors}

    def convolution(x, name, padding):
        return torch.relu(
            functional.conv2d(
                x, leaves[f"{name}.weight"].permute(0, 3, 1, 2), leaves[f"{name}.bias"], padding=padding
            )
        )

    def cost(x, name):
        logits = functional.linear(x, leaves[f"{name}.weight"], leaves[f"{name}.bias"])
        return logits, functional.cross_entropy(logits, torch.from_numpy(labels))

    def flat(x):
        return x.permute(0, 2, 3, 1).flatten(1)

    x = convolution(torch.from_numpy(images).permute(0, 3, 1, 2), "conv1", 1)
    _, first = cost(flat(convolution(x, "loss1.conv", 0)), "loss1.fc")
    x = convolution(x, "conv2", 1)
    _, second = cost(x.mean((2, 3)), "loss2.fc")
    logits, last = cost(flat(x), "fc")
    total = last + weight * first + 0.3 * second
    total.backward()
    assert loss / 6 == pytest.approx(total.item(), rel=1e-11)
    assert correct == int((logits.argmax(1).numpy() == labels).sum())
    gradients = host(replica, replica.gradients)
    for tensor in replica.tensors:
        ours, theirs = gradients[tensor.span].reshape(tensor.shape), leaves[tensor.name].grad.numpy()
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=tensor.name)


def test_evaluation_ignores_auxiliary_classifiers(build, given, step):
    replica, plain = build(network()), build(network(heads=False))
    images, labels = (replica.backend.asarray(array) for array in given)
    vector, shared = host(replica, replica.parameters), {t.name: t for t in replica.tensors}
    for tensor in plain.tensors:
        plain.parameters[tensor.span] = replica.backend.asarray(vector[shared[tensor.name].span])
    logits = replica.predict(images)
    np.testing.assert_array_equal(host(replica, logits), host(plain, plain.predict(images)))
    expected = plain.loss(logits, labels, 1.0)[:2]
    assert replica.loss(logits, labels, 1.0)[:2] == expected
    step(replica, *given, 1.0)
    assert replica.loss(logits, labels, 1.0)[:2] == expected


def test_an_evaluation_within_a_step_changes_nothing(build, given, step):
    expected = build(network())
    loss = step(expected, *given, 1.0)[0]
    replica = build(network())
    images, labels = (replica.backend.asarray(array) for array in given)
    other, others_labels = images[:4].copy(), labels[1:5].copy()

    def evaluate():
        replica.loss(replica.predict(other), others_labels, 1.0)

    x = images
    for stage in replica.stages:
        x = stage.forward(x)
        evaluate()
    again, _, dy = replica.loss(x, labels, 1.0)
    for head in replica.heads:
        head.aim(labels, 1.0)
    dy = dy.copy()  # the array belongs to the loss
    for stage in reversed(replica.stages):
        evaluate()
        dy = stage.backward(dy)
    assert again + sum(head.value for head in replica.heads) == loss
    np.testing.assert_array_equal(host(replica, replica.gradients), host(expected, expected.gradients))


def test_sum_over_parts_of_the_batch_is_the_gradient_of_the_whole(build, given, step):
    replica = build(network())
    images, labels = given
    loss, _ = step(replica, images, labels, 1 / 6)
    whole, total, losses = host(replica, replica.gradients), 0.0, 0.0
    for part in (slice(0, 4), slice(4, 4), slice(4, 6)):
        losses += step(replica, images[part], labels[part], 1 / 6)[0]
        total = total + host(replica, replica.gradients)
    np.testing.assert_allclose(total, whole, rtol=1e-10, atol=1e-13)
    assert losses == pytest.approx(loss)


def test_first_stage_trains_its_classifier_without_an_input_gradient(build, given, step):
    replica = build([Auxiliary("loss1", [Flatten("f"), Linear("fc", CLASSES)]), *network(heads=False)])
    step(replica, *given, 1.0)
    assert np.count_nonzero(host(replica, replica.gradients)[replica.stages[0].span])


def test_dropout_of_a_classifier_has_its_own_masks(build, given, step):
    head = [Flatten("f"), Dropout("drop", 0.5), Linear("fc", CLASSES)]
    replica = build([Auxiliary("loss1", head), *network(heads=False)])
    losses = []
    for key in (1, 1, 2):
        replica.reseed(key)
        losses.append(step(replica, *given, 1.0)[0])
    assert losses[0] == losses[1] != losses[2]


def test_backward_without_labels_is_an_error(build, given):
    replica = build(network())
    x = replica.backend.asarray(given[0])
    for stage in replica.stages[:2]:
        x = stage.forward(x)
    with pytest.raises(ValueError, match=r"^loss1: backward called without labels$"):
        replica.stages[1].backward(x)


@pytest.mark.parametrize(
    ("head", "weight", "message"),
    [
        ([Convolution("conv", 3, 9)], 0.3, r"^loss1\.conv: kernel 9x9 is larger than the padded image 4x5$"),
        (
            [Convolution("conv", 3, 1)],
            0.3,
            r"^loss1: the classifier ends in \(4, 5, 3\), not in a vector of logits$",
        ),
        ([Flatten("f"), Linear("fc", 4)], 0.3, r"^loss1: 4 classes, but the network ends in \(3,\)$"),
        ([Flatten("f"), Linear("fc", 3)], 0.0, r"^loss1: weight must be positive, got 0\.0$"),
    ],
)
def test_invalid_classifiers(head, weight, message, build):
    with pytest.raises(ValueError, match=message):
        build([Auxiliary("loss1", head, weight=weight), *network(heads=False)])


def test_classifier_within_a_branch(build, given, step):
    """No network needs it, but layers may be nested."""
    inner = [Auxiliary("loss", [Flatten("f"), Linear("fc", CLASSES)]), Convolution("conv", 2, 1)]
    replica = build([Concat("m", [inner, []]), Flatten("flatten"), Linear("fc", CLASSES)])
    step(replica, *given, 1.0)
    assert all(np.count_nonzero(host(replica, replica.gradients)[t.span]) for t in replica.tensors)
