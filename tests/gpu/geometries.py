"""What a network asks a backend for: every kernel's geometry, without memory for the network."""

import inspect
from dataclasses import fields, replace

from hpcdl import registry
from hpcdl.nn.backend import Backend, backend
from hpcdl.nn.layer import Site


class Anything(dict):
    """Parameters of whatever name."""

    def __missing__(self, key):
        return None


def default_shape(model):
    """(H, W, C) of the images that a model is meant for."""
    return inspect.signature(model).parameters["shape"].default


def convolutions_and_norms(name, dtype):
    """The geometries of a model that cuDNN is asked for in that precision, each once."""
    asked = {"convolution": {}, "batch_norm": {}}

    def note(kernel):
        def build(wanted):
            # the other kernels are numpy's, which has no 16 bits: they come in here
            asked[kernel][replace(wanted, dtype=dtype)] = None

        return build

    reference = backend("numpy")
    kernels = {field.name: getattr(reference, field.name) for field in fields(Backend)}
    kernels |= {kernel: note(kernel) for kernel in asked}
    model = registry.find("models", name)
    shape = default_shape(model)
    site = Site("", Backend(**kernels), "float32", Anything(), Anything(), [], [])
    for layer in model():
        layer.bind(shape, site.inside(layer.name))
        shape = layer.output(shape)
    return [*asked["convolution"]], [*asked["batch_norm"]]
