"""What a network asks a backend for: every kernel's geometry, without memory for the network."""

import inspect
from dataclasses import fields, replace

from hpcdl import registry
from hpcdl.nn import geometry
from hpcdl.nn.backend import Backend, backend
from hpcdl.nn.layer import Site


class Anything(dict):
    """Parameters of whatever name."""

    def __missing__(self, key):
        return None


def default_shape(model):
    """(H, W, C) of the images that a model is meant for."""
    return inspect.signature(model).parameters["shape"].default


def of_model(name, dtype):
    """All geometries that ``name`` needs in that precision, each once, by the kernel's name."""
    asked = {}

    def note(kernel):
        def build(wanted):
            asked[kernel, wanted] = None

        return build

    reference = backend("numpy")
    kernels = {field.name: getattr(reference, field.name) for field in fields(Backend)}
    kernels |= {kernel: note(kernel) for kernel in ("convolution", "batch_norm")}
    model = registry.find("models", name)
    shape = default_shape(model)
    # the other kernels are numpy's, which has no 16 bits: they come in at the end
    site = Site("", Backend(**kernels), "float32", Anything(), Anything(), [], [])
    for layer in model():
        layer.bind(shape, site.inside(layer.name))
        shape = layer.output(shape)
    return [replace(wanted, dtype=dtype) for _, wanted in asked]


def convolutions_and_norms(name, dtype):
    """The geometries that cuDNN is asked for."""
    found = of_model(name, dtype)
    return (
        [wanted for wanted in found if isinstance(wanted, geometry.WindowGeometry)],
        [wanted for wanted in found if isinstance(wanted, geometry.BatchNormGeometry)],
    )
