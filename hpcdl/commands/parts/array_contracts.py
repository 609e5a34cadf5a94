"""Contracts of objects that compute on arrays: compressors, and models with their layers."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, product
from typing import Any, Final

import numpy as np

from hpcdl.cases.keys.key import Choice, architecture
from hpcdl.cases.simulation.sizes import sizes
from hpcdl.commands.parts.contracts import BrokenContractError, results
from hpcdl.compression.parts.protocol import Compression, Layout
from hpcdl.fabric.comm import Array
from hpcdl.launch.preflight import Finding
from hpcdl.nn.backend import backend
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, SizedLayer
from hpcdl.nn.replica import Replica, Tensor
from hpcdl.nn.volumes import volumes
from hpcdl.training.parts.compressed.plan import kind_of

SHAPES: Final = ((5, 7), (11,), (3, 2, 2, 4), (1,), (257,))
"""Tensors of a gradient of 352 entries; only the first begins at a multiple of 8."""
SPANS: Final = (slice(0, 352), slice(95, 352), slice(94, 95), slice(352, 352))
"""Whole tensors: all, the last, one of one entry, none."""
IMAGES: Final = 2


def layout(shapes: Sequence[Shape], **fields: Any) -> Layout:
    """Return the layout of a gradient with tensors of ``shapes``, one after the other."""
    *offsets, size = accumulate(map(math.prod, shapes), initial=0)
    tensors = [Tensor(f"{i}.weight", offsets[i], shape, decay=False) for i, shape in enumerate(shapes)]
    return Layout(size=size, tensors=tensors, **fields)


def compressed(compressor: Any, span: slice, vector: Array, step: int = 0) -> tuple[Array, Array, str]:
    """Return what a rank sends and keeps of ``vector``, (span length,), and the message, as text."""
    kept, sent, kind = vector.copy(), np.zeros_like(vector), kind_of(type(compressor))
    if kind == "vectors":
        rest = np.empty_like(vector)
        pieces = [piece.copy() for piece in compressor.rounds(span, kept, rest, step)]
        _same("vectors", [(len(piece), str(piece.dtype)) for piece in pieces], compressor.lengths(span))
        return kept, rest, repr([piece.tobytes() for piece in pieces])
    if kind == "entries":
        entries = compressor.select(span, kept, step)
        if len(entries.indices) > compressor.most(span) or (np.diff(entries.indices) <= 0).any():
            raise BrokenContractError(f"{len(vector)} entries: positions do not rise, or are more than stated")
        sent[entries.indices] = entries.values
        return sent, kept, repr([part.tobytes() for part in entries])
    wire = np.full(compressor.bound(span), 255, np.uint8)
    message = wire[: compressor.encode(span, kept, wire, step)]
    if (expected := compressor.expected(span)) is not None:
        _same("bytes of a message", len(message), expected)
    compressor.decode(span, message.copy(), sent)
    return sent, kept, repr(message.tobytes())


def _same(what: str, actual: object, stated: object) -> None:
    if actual != stated:
        raise BrokenContractError(f"{what}: {actual}, stated: {stated}")


def check_conservation(compressor: Any, span: slice, vector: Array) -> None:
    """Raise BrokenContractError unless the sum of what is sent and kept is ``vector``, (span length,), rounded."""
    sent, kept, _ = compressed(compressor, span, vector, len(vector))
    error = np.abs(sent.astype("float64") + kept - vector)
    if not (error <= np.finfo(vector.dtype).eps * np.maximum(np.abs(sent), np.abs(kept))).all():
        where = f"{len(vector)} values of {vector.dtype} up to {np.abs(vector).max():.3g}"
        raise BrokenContractError(f"{where}: they differ from the input by {error.max():.3g}")


def check_compressor(make: Callable[..., Any], traits: Compression) -> Iterator[Finding]:
    """Yield the result of each check of a compressor, a class that is made with a layout."""
    spans = SPANS if traits.whole_tensors else (*SPANS, slice(7, 300))
    random = np.random.default_rng(19)

    def conserved() -> str:
        for span, dtype, scale in product(spans, ("float32", "float64"), (1.0, 1e-40, 0.0)):
            vector = scale * random.standard_normal(span.stop - span.start)
            check_conservation(make(layout(SHAPES, dtype=dtype)), span, vector.astype(dtype))
        return f"{len(spans)} pieces of a gradient, with none and with tiny values"

    def repeated() -> str:
        vector, fields = random.standard_normal(352).astype("float32"), {"seed": 3, "rank": 2, "ranks": 5}
        first, second = (compressed(make(layout(SHAPES, **fields)), SPANS[0], vector, 7)[2] for _ in range(2))
        _same("messages of equal seeds, ranks and steps", first == second, True)
        return "seed, rank and step decide a message"

    def finite() -> str:
        for value in (math.nan, math.inf, -math.inf):
            vector = np.ones(352, "float32")
            vector[200] = value
            try:
                compressed(make(layout(SHAPES)), SPANS[0], vector)
            except FloatingPointError:
                continue
            raise BrokenContractError(f"{value} was compressed")
        return "FloatingPointError"

    def zeros() -> str:
        vector = random.standard_normal(352).astype("float32")
        vector[::2] = 0
        sent, _, _ = compressed(make(layout(SHAPES)), SPANS[0], vector)
        _same("zeros stay zeros", bool((sent[::2] == 0).all()), traits.sends_zeros)
        return f"sends_zeros={traits.sends_zeros}"

    yield from results(
        [
            ("what is sent and kept is the input, in messages as long as stated", conserved),
            ("equal messages again", repeated),
            ("values that are not finite refused", finite),
            ("zeros as declared", zeros),
        ]
    )


def check_model(name: str, shape: Shape | None = None) -> Iterator[Finding]:
    """Yield each check of a model on images of ``shape``, or of its own. Raises ValueError for sizes alone."""
    choice = Choice("models", name)
    shape, layers = architecture(choice, None, shape)
    if any(isinstance(layer, SizedLayer) for layer in layers):
        raise ValueError(f"{name!r} has sizes alone; only layers that compute can be checked")
    yield from results(
        [
            ("one output per class", partial(_classes, choice, shape)),
            ("sizes alone as with arithmetic", partial(_sizes, layers, shape)),
            ("gradients as differences of the loss", partial(_gradients, layers, shape)),
        ]
    )


def _classes(choice: Choice, shape: Shape) -> str:
    for classes in (3, 10):
        inner = shape
        for layer in choice.make(shape, classes):
            layer.declare(inner)
            inner = layer.output(inner)
        _same("shape of the last layer", inner, (classes,))
    return f"images {'x'.join(map(str, shape))}"


def _sizes(layers: Sequence[Layer], shape: Shape) -> str:
    sized, replica = (Replica(layers, shape, backend=kernels) for kernels in (sizes(), backend("numpy")))
    _same("parameters", [*sized.tensors], [*replica.tensors])
    _same("number of parameters", volumes(layers, shape, 1).parameters, replica.parameters.size)
    outputs = []
    for network in (sized, replica):
        x = np.zeros((IMAGES, *shape), np.float32)
        outputs.append([(x := stage.forward(x)).shape for stage in network.stages])
    _same("shapes of outputs", *outputs)
    return f"{len(replica.tensors)} tensors, {replica.parameters.size:,} parameters"


def _gradients(layers: Sequence[Layer], shape: Shape) -> str:
    replica = Replica(layers, shape, backend=backend("numpy"), dtype="float64", seed=1)
    random = np.random.default_rng(2)
    images = random.standard_normal((IMAGES, *shape))
    labels = random.integers(0, replica.output[0], IMAGES)
    trained = [stage.span for stage in replica.stages if stage.span.stop > stage.span.start]
    spans = trained[:: -(-len(trained) // 8)]  # at most eight layers
    if wrong := gradient_errors(replica, images, labels, spans):
        raise BrokenContractError(f"not of the parameters {wrong}")
    return f"{len(spans)} layers"


def gradient_errors(replica: Replica, images: Array, labels: Array, spans: Sequence[slice]) -> list[slice]:
    """Return the spans of parameters along which the loss does not change as the gradient says (float64)."""
    kernels, wrong = replica.backend, list[slice]()

    def loss() -> float:
        replica.reseed(2)
        x, aims = kernels.asarray(images), kernels.asarray(labels)
        for stage in replica.stages:
            x = stage.forward(x)
        value, _, x = replica.loss(x, aims, 1.0)
        for head in replica.heads:
            head.aim(aims, 1.0)
        for stage in reversed(replica.stages):
            x = stage.backward(x)  # type: ignore[assignment] # None of the first stage
        return value + sum(head.value for head in replica.heads)

    loss()
    gradient, start = (kernels.to_host(vector).copy() for vector in (replica.gradients, replica.parameters))
    random = np.random.default_rng(3)
    for span in spans:
        direction = np.zeros_like(start)
        direction[span] = random.standard_normal(direction[span].size)
        direction *= 1e-6 / np.linalg.norm(direction)
        ends = []
        for parameters in (start + direction, start - direction):
            replica.parameters[...] = kernels.asarray(parameters)
            ends.append(loss())
        if not math.isclose((ends[0] - ends[1]) / 2, gradient @ direction, rel_tol=1e-4, abs_tol=1e-13):
            wrong.append(span)
    return wrong
