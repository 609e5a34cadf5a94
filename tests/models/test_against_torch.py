"""Every network has the same outputs, gradients and training steps as in PyTorch.

PyTorch runs in float64. In float64 hpcdl must agree to 1e-9: in logits, losses, every tensor's gradient, what a
step of SGD makes of the parameters, running statistics, and logits in evaluation. In float32 it must agree to 1e-5
in logits and 1e-4 in gradients. An error is the 2-norm of a tensor's difference over that of PyTorch's tensor.

Gradients are discontinuous where a ReLU's input is zero or two pixels of a pool are equal. Of a million such
decisions one may fall differently in float32, and then a gradient moves by 1e-3 at once, PyTorch's own float32
as well. So of several batches one has to agree, as all but a few do; a wrong backward agrees at none.
"""

from functools import cached_property

import numpy as np
import pytest
from contract import networks

from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica
from hpcdl.optim.parts.protocol import Multipliers
from hpcdl.optim.sgd import SGD

torch_zoo = pytest.importorskip("models.torch_zoo")
torch = pytest.importorskip("torch")

RATE, DECAY = 0.01, 2e-4

NETWORKS = {
    "lenet5": ((28, 28, 1), 10, {}),
    "lenet5 on 8x8": ((8, 8, 1), 10, {}),
    "lenet5 on 16x19": ((16, 19, 3), 7, {}),
    "cifar_quick": ((32, 32, 3), 10, {}),
    "cifar_quick on 17x20": ((17, 20, 1), 4, {}),
    "nin_cifar": ((32, 32, 3), 10, {}),
    "nin on 99x67": ((99, 67, 3), 20, {}),
    "alexnet": ((227, 227, 3), 1000, {}),
    "alexnet on 99x67": ((99, 67, 3), 20, {}),
    "alexnet, ungrouped, on 67x67": ((67, 67, 3), 20, {"groups": 1}),
    "googlenet": ((224, 224, 3), 1000, {}),
    "googlenet on 79x79": ((79, 79, 3), 10, {}),
    "googlenet without heads on 64x64": ((64, 64, 3), 10, {"auxiliary": False}),
    "inception_small": ((32, 32, 1), 10, {}),
    "inception_small on 13x9": ((13, 9, 3), 7, {}),
    "overfeat on 62x59": ((62, 59, 3), 10, {}),
    "vgg11 on 19x17": ((19, 17, 3), 10, {}),
    "vgg16 on 19x17": ((19, 17, 3), 10, {}),
    "vgg19 on 19x17": ((19, 17, 3), 10, {}),
    "resnet20": ((32, 32, 3), 10, {}),
    "resnet20, option B, on 13x9": ((13, 9, 1), 10, {"option": "B"}),
    "resnet56 on 16x16": ((16, 16, 3), 10, {}),
    "resnet50 on 17x17": ((17, 17, 3), 10, {}),
    "distbelief_speech of 50 states": ((11, 40, 1), 50, {}),
    "locally_connected_vision on 40x36": ((40, 36, 3), 10, {}),
    "locally_connected_vision of 2 maps on 12x12": ((12, 12, 1), 10, {"maps": 2}),
}

IMAGES = {"resnet50 on 17x17": 8}
"""2 in all others. ResNet-50's last stage has one pixel an image; normalised over two, only its sign is left."""


def relative(ours, theirs):
    """Return the relative error; computed in pieces, because AlexNet's largest matrix has 4 x 10^7 elements."""
    ours, theirs = ours.reshape(-1), theirs.reshape(-1)
    pieces = [slice(start, start + (1 << 18)) for start in range(0, theirs.size, 1 << 18)]
    difference = sum(float(np.sum((ours[piece] - theirs[piece]) ** 2, dtype=np.float64)) for piece in pieces)
    return np.sqrt(difference / sum(float(np.dot(theirs[piece], theirs[piece])) for piece in pieces))


class Oracle:
    """PyTorch's network with hpcdl's initial weights, one batch, and PyTorch's results."""

    def __init__(self, title, weights, tensors, draw):
        name, shape, classes, settings = described(title)
        random = np.random.default_rng(draw)
        self.images = random.standard_normal((IMAGES.get(title, 2), *shape)).astype(np.float32)
        self.labels = random.integers(0, classes, len(self.images))
        self.tensors = tensors
        with torch.device("meta"):
            network = getattr(torch_zoo, name)(shape, classes, **settings)
        self.network = network.to_empty(device="cpu").double()
        for module in self.network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()
        self.leaves = list(self.network.parameters())
        assert len(self.leaves) == len(tensors)
        for leaf, tensor in zip(self.leaves, tensors, strict=True):
            value = torch.from_numpy(weights[tensor.span].reshape(tensor.shape))
            value = value.permute(0, 3, 1, 2) if leaf.ndim == 4 else value
            assert leaf.shape == value.shape, tensor.name
            leaf.data.copy_(value)
        self.logits, self.loss = self._run()
        self.loss.backward()
        self.gradients = [hpcdls(leaf.grad) for leaf in self.leaves]

    def _run(self):
        images = torch.from_numpy(self.images).double().permute(0, 3, 1, 2)
        logits, loss = torch_zoo.outcome(self.network, images, torch.from_numpy(self.labels))
        return logits.detach().numpy(), loss

    @cached_property
    def after(self):
        """Return parameters after a step, the next loss, running statistics and logits in evaluation."""
        torch.optim.SGD(
            [
                {"params": [leaf], "lr": RATE * tensor.rate, "weight_decay": DECAY if tensor.decay else 0.0}
                for leaf, tensor in zip(self.leaves, self.tensors, strict=True)
            ]
        ).step()
        parameters = [hpcdls(leaf) for leaf in self.leaves]
        with torch.no_grad():
            _, loss = self._run()
            self.network.eval()
            logits, _ = self._run()
        norms = [module for module in self.network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        state = [vector.numpy() for norm in norms for vector in (norm.running_mean, norm.running_var)]
        return parameters, loss.item(), state, logits


def hpcdls(value):
    """Return a PyTorch tensor in hpcdl's order of axes."""
    value = value.detach()
    return (value.permute(0, 2, 3, 1) if value.ndim == 4 else value).numpy()


def described(title):
    return title.replace(",", " ").split()[0], *NETWORKS[title]


def build(title, kernels, dtype):
    name, shape, classes, settings = described(title)
    layers = networks.layers(name, shape, classes, **settings)
    return Replica(layers, shape, backend=kernels, dtype=dtype, seed=1)


LARGE = {"alexnet", "googlenet", "vgg11 on 19x17", "vgg16 on 19x17", "vgg19 on 19x17", "resnet56 on 16x16"}
"""Networks of large images, matrices of 4096 x 4096, or many equal blocks; smaller ones have the same layers."""

SAMPLE = {"googlenet", "vgg11 on 19x17"}
"""Large networks of the sample; AlexNet, VGG and ResNet are tested on small images or in fewer layers."""


def marked(title):
    marks = [pytest.mark.slow] if title in LARGE else []
    return pytest.param(title, marks=[*marks, pytest.mark.grid] if title in LARGE - SAMPLE else marks)


@pytest.fixture(scope="module", params=map(marked, NETWORKS))
def title(request):
    return request.param


@pytest.fixture(params=["numpy", "numba"])
def kernels(request):
    return backend(request.param)


@pytest.fixture(scope="module")
def oracle(title):
    """Gives weights and an oracle that has them, the same ones to all tests of a network."""
    kept = {}

    def give(replica, draw=0):
        if "weights" not in kept:
            kept["weights"] = weights(replica)
        if draw not in kept:
            kept[draw] = Oracle(title, kept["weights"], replica.tensors, draw)
        return kept["weights"], kept[draw]

    return give


def weights(replica):
    """Return initial weights with non-trivial biases and gammas, equal for all dtypes."""
    random = np.random.default_rng(9)
    vector = replica.backend.to_host(replica.parameters).astype(np.float32)
    for tensor in replica.tensors:
        if tensor.name.endswith("gamma"):
            # a large last gamma would make errors grow from block to block
            size = 0.1 if "expand" in tensor.name or ".bn2" in tensor.name else 1.0
            vector[tensor.span] = size * random.uniform(0.5, 1.5, tensor.shape)
        elif not tensor.decay:
            vector[tensor.span] += 0.1 * random.standard_normal(vector[tensor.span].size)
    return vector


def step(replica, images, labels):
    """Return logits and mean loss; compute the gradients."""
    put, scale = replica.backend.asarray, 1 / len(labels)
    x = networks.forward(replica, put(images.astype(replica.dtype)))
    logits = replica.backend.to_host(x).copy()
    return logits, networks.backward(replica, x, put(labels), scale)[0] * scale


def update(replica):
    """Make a step of SGD, without decay of biases and batch normalisation, and with the model's own rates."""
    optimizer = SGD(weight_decay=DECAY)
    optimizer.multipliers = Multipliers.of(replica.tensors)
    optimizer.update(replica.parameters, replica.gradients, RATE)


def errors(replica, vector, expected):
    """Relative error of each tensor of a flat vector."""
    host = replica.backend.to_host(vector)
    return {
        tensor.name: relative(host[tensor.span].reshape(tensor.shape), theirs)
        for tensor, theirs in zip(replica.tensors, expected, strict=True)
    }


@pytest.mark.slow
def test_a_step_in_float64_equals_pytorchs(title, kernels, oracle):
    replica = build(title, kernels, "float64")
    start, theirs = oracle(replica)
    replica.parameters[...] = kernels.asarray(start)
    logits, loss = step(replica, theirs.images, theirs.labels)
    assert relative(logits, theirs.logits) < 1e-9
    assert loss == pytest.approx(theirs.loss.item(), rel=1e-10)
    assert all(np.any(gradient) for gradient in theirs.gradients)
    found = errors(replica, replica.gradients, theirs.gradients)
    assert max(found.values()) < 1e-9, max(found, key=found.get)

    parameters, next_loss, state, evaluated = theirs.after
    update(replica)
    assert max(errors(replica, replica.parameters, parameters).values()) < 1e-9
    _, loss = step(replica, theirs.images, theirs.labels)
    assert loss == pytest.approx(next_loss, rel=1e-9)
    if state:
        assert relative(kernels.to_host(replica.state), np.concatenate(state)) < 1e-9
    images = kernels.asarray(theirs.images.astype(np.float64))
    assert relative(kernels.to_host(replica.predict(images)), evaluated) < 1e-9
