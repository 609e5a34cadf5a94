"""Replica: one rank's copy of a network, with flat vectors of parameters and gradients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from zlib import crc32

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Backend
from hpcdl.nn.geometry import Shape, master
from hpcdl.nn.initial import draws
from hpcdl.nn.layer import Layer, Site, Variable
from hpcdl.nn.loss import SoftmaxCrossEntropy
from hpcdl.nn.split.division import Division
from hpcdl.nn.stage import Stage


@dataclass(frozen=True, slots=True)
class Tensor:
    """Position of a parameter in the flat vectors, in elements. The first axis of a matrix is its outputs."""

    name: str
    """Full name: ``conv1.weight``, ``inception_3a.3x3.bias``."""
    offset: int
    shape: Shape
    decay: bool
    """Apply weight decay; False for biases and batch normalisation."""
    rate: float = 1.0
    """Factor on the learning rate."""

    @property
    def span(self) -> slice:
        """Slice of the flat vectors."""
        return slice(self.offset, self.offset + math.prod(self.shape))


class Replica:
    """Layers bound to flat vectors: one contiguous vector each for parameters, gradients and state.

    A step runs every stage's forward, the loss, and every stage's backward in reverse. Spans follow the order of
    the stages, so gradients become final from the end of the vector to its start.

    The initial value of each tensor depends only on ``seed`` and the tensor's name.

    ``layers`` take images of ``shape``, (H, W, C) or (F,). A replica may hold only the layers of ``part``: all of
    its vectors have only theirs, its inputs are the outputs of the layer before them, and its initial values are
    those of the whole network; with a backend of sizes there are none. ``dtype`` is the precision of activations:
    float32, float64, or on some backends bfloat16 or float16. With 16-bit activations, the flat vectors, images
    and predictions are float32. ``allocate(size, dtype)`` returns zeroed vectors for parameters and gradients; it
    needs a backend with numpy arrays. ``division`` gives this rank's parts of the layers
    (:func:`hpcdl.nn.split.division.divide`) in place of ``layers``.

    ValueError: a layer that does not accept its input shape, duplicate names, an unknown dtype, no layer.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        shape: tuple[int, ...],
        *,
        backend: Backend,
        dtype: str = "float32",
        seed: int = 0,
        allocate: Callable[[int, str], Array] | None = None,
        division: Division | None = None,
        part: slice = slice(None),
    ) -> None:
        backend.check_precision(dtype)
        layers = layers if division is None else division.parts
        if not layers:
            raise ValueError("a network needs at least one layer")
        _distinct(layer.name for layer in layers)
        self.backend = backend
        self._precision = dtype
        self.dtype = master(dtype)
        """Dtype of the flat vectors, images and predictions."""
        self.loss_scale = 1.0
        """Factor on the gradients that prevents underflow in 16 bits; the update divides by it."""

        shapes = [shape]
        if division is not None:
            shapes = [*division.shapes, division.output]
        else:
            for layer in layers:
                shapes.append(layer.output(shapes[-1]))
        begin, end, _ = part.indices(len(layers))
        if begin >= end:
            raise ValueError(f"layers {begin} to {end} of {len(layers)} are none")
        held, inputs = layers[begin:end], shapes[begin:end]
        self.is_first, self.is_last = begin == 0, end == len(layers)
        """True if the replica holds the first layer of the network, the last one."""
        self.shape, self.output = shapes[begin], shapes[end]

        trained, held_state = list[list[Variable]](), list[list[Variable]]()
        for layer, given in zip(held, inputs, strict=True):
            declared = [
                replace(variable, name=f"{layer.name}.{variable.name}") for variable in layer.declare(given)
            ]
            trained.append([variable for variable in declared if variable.trained])
            held_state.append([variable for variable in declared if not variable.trained])
        parameters, untrained = [*chain.from_iterable(trained)], [*chain.from_iterable(held_state)]
        _distinct(variable.name for variable in (*parameters, *untrained))
        self.tensors = _place(parameters)

        def initial(variables: Sequence[Variable], zeros: Callable[[int, str], Array]) -> Array:
            if backend.sizes_only:
                return backend.zeros(_size(variables), self.dtype)
            return backend.asarray(_drawn(variables, zeros(_size(variables), self.dtype), seed))

        self.parameters = initial(parameters, allocate or np.zeros)
        self.gradients = (allocate or backend.zeros)(self.parameters.size, self.dtype)
        self.layer_gradient = backend.zeros(0, self.dtype)
        """Gradient of one layer for one microbatch; empty without :meth:`bindings`."""
        self.state = initial(untrained, np.zeros)
        """Running statistics; training forwards update them, evaluation reads them; may be empty."""

        values = _views(self.parameters, self.tensors) | _views(self.state, _place(untrained))
        site = Site("", backend, dtype, values, _views(self.gradients, self.tensors), [], [])
        stages = list[Stage]()
        spans = zip(_spans(trained), _spans(held_state), strict=True)
        for layer, given, own in zip(held, inputs, spans, strict=True):
            first = self.is_first and not stages
            stages.append(Stage(layer, given, own, replace(site, path=layer.name), first=first))
        self.stages = tuple(stages)

        self._seeded = site.seeded
        _distinct(path for path, _ in self._seeded)
        self.reseed(seed)
        vector = self.is_last and len(self.output) == 1
        self._loss = SoftmaxCrossEntropy(self.output[0], backend, dtype) if vector else None
        self.heads = tuple(site.heads)
        """Losses of auxiliary classifiers; backward needs their labels (:meth:`AuxiliaryLoss.aim`)."""
        for head in self.heads:
            if (head.classes,) != shapes[-1]:
                raise ValueError(f"{head.path}: {head.classes} classes, but the network ends in {shapes[-1]}")

    def loss(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """Return the summed loss, the number of correct images, and ``scale`` x the gradient.

        With ``scale`` = 1 / global batch, the sum of the gradients over ranks is the gradient of the mean loss.
        The gradient array is valid until the next call.

        The loss of an image is its cross-entropy, without those of auxiliary classifiers (:attr:`heads`).

        ValueError: inconsistent shapes, a label out of range, a network that does not end in a vector.
        """
        if self._loss is None:
            raise ValueError(f"loss: the network ends in {self.output}, not in a vector of logits")
        return self._loss(logits, labels, scale * self.loss_scale)

    def predict(self, images: Array) -> Array:
        """Return the logits (N, classes) in evaluation mode, as a new array; a part, its last layer's outputs.

        It may be called at any point of a training step; it changes no buffer and no random state.
        """
        x = images
        for stage in self.stages:
            x = stage.forward(x, train=False)
        if self.is_last and x.dtype != self.dtype and self.backend.cast is not None:
            return self.backend.cast(x, self._precision)
        return x.copy()

    def release_predictions(self) -> None:
        """Free the inputs that kernels keep after predictions; an empty batch replaces them."""
        for stage in self.stages:
            stage.forward(self.backend.zeros(0, stage.input_dtype).reshape(0, *stage.shape), train=False)

    def reseed(self, *key: int) -> None:
        """Restart dropout's random numbers from non-negative integers, such as seed, rank and step."""
        # The path is part of the key: layers of equal shape must not drop the same activations.
        for path, op in self._seeded:
            op.reseed((*key, crc32(path.encode())))

    def buffers(self, images: int, count: int, *, inputs: bool) -> list[Array]:
        """Return vectors for the ``inputs`` of ``images`` images each, or for their outputs, to be received."""
        shape, dtype = (
            (self.shape, self.stages[0].input_dtype) if inputs else (self.output, self.stages[-1].output_dtype)
        )
        return [self.backend.zeros(images * math.prod(shape), dtype) for _ in range(count)]

    def bindings(self, count: int, part: slice = slice(None)) -> tuple[tuple[Stage, ...], ...]:
        """Bind the layers of ``part`` ``count`` times more, for as many microbatches in flight.

        A layer's backward writes to memory that all layers share, which has the length of the longest one; its
        gradient is added to ``gradients`` at once.
        """
        stages = self.stages[part]
        longest = max(stage.span.stop - stage.span.start for stage in stages)
        self.layer_gradient = self.backend.zeros(longest, self.dtype)
        return tuple(self._bound_again(stages, self.layer_gradient) for _ in range(count))

    def _bound_again(self, stages: Sequence[Stage], shared: Array) -> tuple[Stage, ...]:
        binding = list[Stage]()
        stashes: dict[str, list[Array]] = {}
        for stage in stages:
            begin, end = stage.span.start, stage.span.stop
            own = [tensor for tensor in self.tensors if begin <= tensor.offset < end]
            views = _views(shared, [replace(tensor, offset=tensor.offset - begin) for tensor in own])
            binding.append(stage.again(views, shared[: end - begin], self.gradients[stage.span], stashes))
        return tuple(binding)


def _place(variables: Sequence[Variable]) -> tuple[Tensor, ...]:
    """Return the variables' positions in a flat vector, in their order."""
    tensors, offset = [], 0
    for variable in variables:
        tensors.append(Tensor(variable.name, offset, variable.shape, variable.decay, variable.rate))
        offset += math.prod(variable.shape)
    return tuple(tensors)


def _drawn(variables: Sequence[Variable], values: Array, seed: int) -> Array:
    """Return ``values`` filled with the initial values of the variables."""
    for variable, view in zip(variables, _views(values, _place(variables)).values(), strict=True):
        variable.initial(view, draws(seed, variable.drawn_as or variable.name, variable.shape))
    return values


def _views(vector: Array, tensors: Sequence[Tensor]) -> dict[str, Array]:
    return {tensor.name: vector[tensor.span].reshape(tensor.shape) for tensor in tensors}


def _spans(stages: Sequence[Sequence[Variable]]) -> list[slice]:
    """Return each stage's slice of the flat vector of all variables."""
    ends = [*accumulate(map(_size, stages), initial=0)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


def _size(variables: Sequence[Variable]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def _distinct(names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]}: two layers of this name")
