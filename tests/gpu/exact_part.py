"""Every kernel against numpy's in float64, at sizes of real networks."""

from dataclasses import replace

import numpy as np
from gpu.processor import narrow, wide

from hpcdl.nn import geometry
from hpcdl.nn.backend import NormVectors, Weights, backend
from hpcdl.nn.geometry import master, storage_dtype

EXACT = "float64"

TOLERANCES = {"float32": 1e-4, "tf32": 3e-3, "bfloat16": 2e-2, "float16": 3e-3, "float64": 1e-9}
"""2-norm of the difference over that of the exact result."""


def convolution(image, filters, kernel, stride, padding, groups, relu=False):
    def make(dtype):
        placed = geometry.windows(image[:2], kernel, stride, padding, "floor", layer="c")
        shape = (*placed, filters)
        return geometry.WindowGeometry(image, shape, kernel, stride, padding, dtype, groups, relu)

    return make


def pooling(image, kernel, stride, padding):
    def make(dtype):
        placed = geometry.windows(image[:2], kernel, stride, padding, "ceil", layer="p")
        return geometry.WindowGeometry(image, (*placed, image[2]), kernel, stride, padding, dtype)

    return make


AFFINE = {
    "11x11/4 of 3 channels": ("convolution", convolution((227, 227, 3), 96, (11, 11), (4, 4), (0, 0), 1, True)),
    "5x5 in 2 groups": ("convolution", convolution((27, 27, 96), 256, (5, 5), (1, 1), (2, 2), 2, True)),
    "3x3": ("convolution", convolution((28, 28, 64), 64, (3, 3), (1, 1), (1, 1), 1, True)),
    "3x3/2": ("convolution", convolution((28, 28, 64), 128, (3, 3), (2, 2), (1, 1), 1)),
    "1x1": ("convolution", convolution((14, 14, 256), 64, (1, 1), (1, 1), (0, 0), 1)),
    "7x7/2": ("convolution", convolution((64, 64, 3), 64, (7, 7), (2, 2), (3, 3), 1)),
    "odd channels": ("convolution", convolution((13, 11, 5), 7, (3, 3), (1, 1), (1, 1), 1, True)),
    "linear": ("linear", lambda dtype: geometry.LinearGeometry(1024, 1000, dtype, relu=True)),
    "odd linear": ("linear", lambda dtype: geometry.LinearGeometry(77, 33, dtype)),
    "local 3x3": (
        "locally_connected",
        lambda dtype: geometry.WindowGeometry((12, 12, 8), (12, 12, 8), (3, 3), (1, 1), (1, 1), dtype),
    ),
}

ELEMENTARY = {
    "relu": ("relu", lambda dtype: geometry.Blob((28, 28, 64), dtype)),
    "max 3/2": ("max_pooling", pooling((55, 55, 96), (3, 3), (2, 2), (0, 0))),
    "max 3/2 padded": ("max_pooling", pooling((57, 57, 64), (3, 3), (2, 2), (1, 1))),
    "average 3/2": ("average_pooling", pooling((32, 32, 32), (3, 3), (2, 2), (0, 0))),
    "max 18, more than a byte counts": ("max_pooling", pooling((20, 19, 4), (18, 18), (1, 1), (0, 0))),
    "max 3/2 of odd channels": ("max_pooling", pooling((6, 5, 3), (3, 3), (2, 2), (1, 1))),
    "average of one pixel": ("average_pooling", pooling((1, 1, 40), (1, 1), (2, 2), (0, 0))),
    "sigmoid of odd channels": ("sigmoid", lambda dtype: geometry.Blob((6, 5, 3), dtype)),
    "global": ("global_average", lambda dtype: geometry.Blob((7, 7, 2048), dtype)),
    "lrn": (
        "response_normalization",
        lambda dtype: geometry.ResponseGeometry((27, 27, 96), 5, 1e-4, 0.75, 1.0, dtype),
    ),
}


def exact(results, name, tiny):
    reference, batch = backend("numpy"), 2 if tiny else 16
    precisions = ["float32"] if name == "numpy" else ["float64", "float32", "tf32", "bfloat16", "float16"]
    for precision in precisions:
        dtype = "float32" if precision == "tf32" else precision
        kernels = backend(name) if name == "numpy" else backend(name, tf32=precision == "tf32")
        for title, (what, make) in AFFINE.items():
            if not (tiny and "11x11" in title):
                compare(results, f"{title} {precision}", affine, what, make, kernels, reference, dtype, batch)
        if precision == "tf32":
            continue  # tensor cores multiply: the others are the same kernels
        for title, (what, make) in ELEMENTARY.items():
            compare(results, f"{title} {precision}", elementary, what, make, kernels, reference, dtype, batch)
        for joined, relu in ((False, True), (True, True)):

            def norm(kind, joined=joined, relu=relu):
                return geometry.BatchNormGeometry((14, 14, 64), 1e-5, 0.9, kind, joined, relu)

            title = f"batch norm{' joined' if joined else ''} {precision}"
            compare(results, title, normalised, "batch_norm", norm, kernels, reference, dtype, batch)


def compare(results, title, how, what, make, kernels, reference, dtype, batch):
    if results.left() < 5:
        results.put(title, shown="not run: no time left")
        return
    if what == "locally_connected":
        how = local
    found = how(getattr(kernels, what)(make(dtype)), make(dtype), kernels, dtype, batch)
    g, decided = make(EXACT), None
    if how in {affine, local} and g.relu:
        # one of a thousand outputs is so near to zero that rounding decides its sign, and a gradient hangs on it:
        # the exact side follows the decisions of the other
        g, decided = replace(g, relu=False), found[0] > 0
    right = how(getattr(reference, what)(g), g, reference, EXACT, batch, rounded=dtype, decided=decided)
    errors = [relative(mine, its) for mine, its in zip(found, right, strict=True)]
    limit = TOLERANCES[title.rsplit(" ", 1)[1]]
    results.put(title, ok=bool(max(errors) < limit), errors=[float(f"{error:.2e}") for error in errors])


def relative(mine, its):
    return float(np.linalg.norm(mine - its) / max(np.linalg.norm(its), 1e-30))


class Draw:
    """The same numbers for both sides: rounded to the precision under test, and put on the device."""

    def __init__(self, kernels, dtype, rounded):
        self._kernels = kernels
        self._dtype = dtype
        self._rounded = rounded or dtype
        self._count = 0

    def __call__(self, shape, *, parameter=False, size=1.0):
        self._count += 1
        values = size * np.random.default_rng([self._count, *shape]).standard_normal(shape)
        kept = master(self._rounded) if parameter else self._rounded
        values = wide(narrow(values, kept), kept)
        kind = master(self._dtype) if parameter else self._dtype
        stored = narrow(values, kind)
        return self._kernels.asarray(np.ascontiguousarray(stored))

    def room(self, shape):
        return self._kernels.zeros(int(np.prod(shape)), master(self._dtype)).reshape(shape)

    def back(self, array):
        host = self._kernels.to_host(array)
        dtype = self._dtype if host.dtype == storage_dtype(self._dtype) else master(self._dtype)
        return wide(host, dtype).astype(EXACT)


def affine(op, g, kernels, dtype, batch, rounded=None, decided=None, weight=None):
    draw = Draw(kernels, dtype, rounded)
    image, output, weight, bias = shapes(g) if weight is None else (g.image, g.output, weight, g.output)
    fan = np.sqrt(np.prod(weight) / np.prod(bias))
    w, b = draw(weight, parameter=True, size=1 / fan), draw(bias, parameter=True)
    weights = Weights(w, b, draw.room(weight), draw.room(bias))
    y = op.forward(draw((batch, *image)), weights)
    answers = [draw.back(y) if decided is None else np.maximum(draw.back(y), 0)]
    dy = draw((batch, *output))
    dx = op.backward(dy if decided is None else dy * decided, weights, needs_dx=True)
    return [*answers, *map(draw.back, (dx, weights.dweight, weights.dbias))]


def local(op, g, *given, **more):
    return affine(op, g, *given, **more, weight=(*g.output, *g.kernel, g.image[2]))


def shapes(g):
    if isinstance(g, geometry.LinearGeometry):
        return (g.inputs,), (g.outputs,), (g.outputs, g.inputs), (g.outputs,)
    return g.image, g.output, (g.output[2], *g.kernel, g.image[2] // g.groups), (g.output[2],)


def elementary(op, g, kernels, dtype, batch, rounded=None, decided=None):
    draw = Draw(kernels, dtype, rounded)
    shape = g.shape if hasattr(g, "shape") else g.image
    y = op.forward(draw((batch, *shape)))
    answer = draw.back(y)
    return [answer, draw.back(op.backward(draw(answer.shape)))]


def normalised(op, g, kernels, dtype, batch, rounded=None, decided=None):
    draw = Draw(kernels, dtype, rounded)
    channels = g.shape[-1:]
    vectors = NormVectors(
        *(draw(channels, parameter=True) for _ in range(3)), *(draw.room(channels) for _ in range(3))
    )
    x, beside = draw((batch, *g.shape)), draw((batch, *g.shape))
    y = op.forward(x, beside if g.joined else None, vectors, train=True)
    answers = [draw.back(array) for array in (y, vectors.mean, vectors.variance)]
    dx, _ = op.backward(draw((batch, *g.shape)), vectors)
    return [*answers, *(draw.back(array) for array in (dx, vectors.dgamma, vectors.dbeta))]
