"""The networks for small images learn."""

import numpy as np
import pytest

from hpcdl.models.cifar_quick import cifar_quick
from hpcdl.models.cifar_resnet import resnet20
from hpcdl.models.distbelief import locally_connected_vision
from hpcdl.models.lenet5 import lenet5
from hpcdl.nn.replica import Replica

NETWORKS = [
    (lenet5, (8, 8, 1)),
    (cifar_quick, (16, 16, 3)),
    (resnet20, (8, 8, 1)),
    (locally_connected_vision, (16, 16, 1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("network", "shape"), NETWORKS)
def test_learns_noisy_templates(network, shape, kernels):
    """Images are one of four random templates plus noise; test images are new."""
    random = np.random.default_rng(6)
    # coarse patterns, because average pooling removes fine ones
    coarse = random.standard_normal((4, shape[0] // 4, shape[1] // 4, shape[2]))
    templates = coarse.repeat(4, axis=1).repeat(4, axis=2)

    def draw(n):
        labels = random.integers(0, 4, n)
        return (templates[labels] + 0.7 * random.standard_normal((n, *shape))).astype(np.float32), labels

    replica = Replica(network(shape, 4), shape, backend=kernels, seed=2)
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
