"""Networks of several tests, some without dropout, and the parts of a training step."""

from hpcdl import registry
from hpcdl.nn.composite import Auxiliary
from hpcdl.nn.layers import Convolution, Dropout, Flatten, Linear, MaxPooling


def with_classifiers(classes):
    """Return nine small layers, among them dropout and auxiliary classifiers."""
    return [
        Convolution("conv", 4, 3, relu=True),
        Dropout("drop1", 0.3),
        Auxiliary("aux1", [Flatten("flat"), Linear("fc", classes)]),
        MaxPooling("pool", 2),
        Flatten("flat"),
        Linear("fc1", 12, relu=True),
        Auxiliary("aux2", [Linear("fc", classes)]),
        Dropout("drop2"),
        Linear("fc2", classes),
    ]


def layers(name, shape, classes, **settings):
    """Return the layers of a model whose dropout drops nothing."""
    model = registry.find("models", name)
    dropout = {key: 0.0 for key in registry.settings_of(model) if "dropout" in key}
    return model(shape, classes, **settings, **dropout)


def forward(replica, x):
    """Return the outputs of all stages for images on the device."""
    for stage in replica.stages:
        x = stage.forward(x)
    return x


def backward(replica, x, labels, scale):
    """Compute the gradients of the outputs ``x``; return all losses and the number of correct images."""
    loss, correct, dy = replica.loss(x, labels, scale)
    for head in replica.heads:
        head.aim(labels, scale * replica.loss_scale)
    for stage in reversed(replica.stages):
        dy = stage.backward(dy)
    assert dy is None
    return loss + sum(head.value for head in replica.heads), correct


def step(replica, images, labels, scale):
    """Compute the gradients of host arrays, as :func:`backward`."""
    x, labels = map(replica.backend.asarray, (images, labels))
    return backward(replica, forward(replica, x), labels, scale)
