"""Replica: one rank's copy of a network, with flat vectors of parameters and gradients."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from hpcdl.nn.layer import Site, Variable
from hpcdl.nn.loss import SoftmaxCrossEntropy
from hpcdl.nn.precision import master, storage_dtype
from hpcdl.nn.split.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.backend import Backend
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.nn.split.division import Division


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


class Stage:
    """A bound top-level layer.

    Outputs and gradients belong to the stage and are valid until its next forward or backward. Inputs, including
    images, must not change before backward. Training and evaluation use separate memory, so an evaluation may run
    between a forward and its backward.
    """

    def __init__(
        self, layer: Layer, shape: Shape, spans: tuple[slice, slice], site: Site, *, first: bool
    ) -> None:
        self.name = layer.name
        self.span, self.state = spans
        """Slices of the flat vectors of parameters and of state; empty without them."""
        self.divided = isinstance(layer, Part) and bool(layer.cuts)
        """True if this rank has only its part of the layer's parameters and state."""
        self.shape = shape
        """Shape of one input."""
        self.output = layer.output(shape)
        """Shape of one output."""
        self._layer = layer
        self._site = site
        self._first = first
        self._outputs = storage_dtype(site.dtype)
        self._inputs = master(site.dtype) if first else self._outputs
        heads = len(site.heads)
        bound = layer.bind(shape, site)
        if site.backend.record is not None and len(site.heads) == heads:
            # an auxiliary classifier passes its logits to the loss in each forward; a recording would skip that
            bound = site.backend.record(bound)
        self._training = bound
        self._evaluation: Bound | None = None
        self._batch: int | None = None

    def forward(self, x: Array, train: bool = True) -> Array:
        """Return the outputs (N, *output); N may differ between calls.

        ValueError: an input of the wrong shape or dtype.
        """
        self._check("input", x, self.shape, self._inputs)
        if train:
            self._batch = len(x)
            return self._training.forward(self._narrow(_contiguous(x)), train=True)
        if self._evaluation is None:
            self._evaluation = self._layer.bind(self.shape, replace(self._site, seeded=[], heads=[]))
        return self._evaluation.forward(self._narrow(_contiguous(x)), train=False)

    def backward(self, dy: Array) -> Array | None:
        """Overwrite the gradients of ``span``; return the gradient of the last training input.

        The first stage returns None: the gradient of the images is not computed. Each training forward allows one
        backward.

        ValueError: a gradient that does not fit the last training forward, or a second backward.
        """
        self._check("gradient", dy, self.output, self._outputs)
        if len(dy) != self._batch:
            raise ValueError(
                f"{self.name}: gradient of {len(dy)} images after a forward of {self._batch or 'none'}"
            )
        self._batch = None
        return self._training.backward(_contiguous(dy), needs_dx=not self._first)

    def release_prediction(self) -> None:
        """Free the input that kernels keep after an evaluation."""
        if self._evaluation is not None:
            empty = self._site.backend.zeros(0, self._inputs).reshape(0, *self.shape)
            self.forward(empty, train=False)

    def _narrow(self, x: Array) -> Array:
        """Convert images to the precision of the activations."""
        if self._inputs == self._outputs:
            return x
        assert self._site.backend.cast is not None, "Replica checks the precision"
        return self._site.backend.cast(x, self._site.dtype)

    def _check(self, role: str, array: Array, shape: Shape, dtype: str) -> None:
        if array.shape[1:] != shape or array.dtype != dtype:
            raise ValueError(
                f"{self.name}: {role} is {array.dtype} {array.shape}, not {dtype} (N, "
                f"{', '.join(map(str, shape))})"
            )


class Replica:
    """Layers bound to flat vectors: one contiguous vector each for parameters, gradients and state.

    A step runs every stage's forward, the loss, and every stage's backward in reverse. Spans follow the order of
    the stages, so gradients become final from the end of the vector to its start.

    The initial value of each tensor depends only on ``seed`` and the tensor's name.

    ``layers`` take images of ``shape``, (H, W, C) or (F,). ``dtype`` is the precision of activations: float32,
    float64, or on some backends bfloat16 or float16. With 16-bit activations, the flat vectors, images and
    predictions are float32. ``allocate(size, dtype)`` returns zeroed vectors for parameters and gradients; it
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
        self.shape = shape

        inputs, trained, untrained = [shape], list[list[Variable]](), list[Variable]()
        states = list[slice]()
        for i, layer in enumerate(layers):
            if division is not None:
                inputs[i] = division.shapes[i]
            declared = [
                replace(variable, name=f"{layer.name}.{variable.name}") for variable in layer.declare(inputs[i])
            ]
            trained.append([variable for variable in declared if variable.trained])
            before = _size(untrained)
            untrained += [variable for variable in declared if not variable.trained]
            states.append(slice(before, _size(untrained)))
            inputs.append(layer.output(inputs[i]))
        self.output = inputs[-1] if division is None else division.output

        parameters = [variable for variables in trained for variable in variables]
        _distinct(variable.name for variable in (*parameters, *untrained))
        self.tensors = _place(parameters)
        self.parameters = backend.asarray(_drawn(parameters, self.dtype, seed))
        self.gradients = (allocate or backend.zeros)(self.parameters.size, self.dtype)
        if allocate is not None:
            elsewhere = allocate(self.parameters.size, self.dtype)
            elsewhere[:] = self.parameters
            self.parameters = elsewhere
        self.state = backend.asarray(_drawn(untrained, self.dtype, seed))
        """Running statistics; training forwards update them, evaluation reads them; may be empty."""

        values = _views(self.parameters, self.tensors) | _views(self.state, _place(untrained))
        site = Site("", backend, dtype, values, _views(self.gradients, self.tensors), [], [])
        stages, start = list[Stage](), 0
        for layer, variables, state, input_shape in zip(layers, trained, states, inputs[:-1], strict=True):
            end = start + _size(variables)
            place = replace(site, path=layer.name)
            stages.append(Stage(layer, input_shape, (slice(start, end), state), place, first=not stages))
            start = end
        self.stages = tuple(stages)

        self._seeded = site.seeded
        _distinct(path for path, _ in self._seeded)
        self.reseed(seed)
        self._loss = SoftmaxCrossEntropy(self.output[0], backend, dtype) if len(self.output) == 1 else None
        self._heads = tuple(site.heads)
        for head in self._heads:
            if (head.classes,) != self.output:
                raise ValueError(f"{head.path}: {head.classes} classes, but the network ends in {self.output}")

    def loss(self, logits: Array, labels: Array, scale: float, *, train: bool = True) -> tuple[float, int, Array]:
        """Return the summed loss, the number of correct images, and ``scale`` x the gradient.

        With ``scale`` = 1 / global batch, the sum of the gradients over ranks is the gradient of the mean loss.
        The gradient array is valid until the next call.

        The loss of an image is its cross-entropy. With ``train``, the weighted losses of auxiliary classifiers are
        added, as in the output of Caffe's solver. Only the last classifier decides if an image is correct.

        ValueError: inconsistent shapes, a label out of range, a network that does not end in a vector.
        """
        if self._loss is None:
            raise ValueError(f"loss: the network ends in {self.output}, not in a vector of logits")
        scale *= self.loss_scale
        loss, correct, gradient = self._loss(logits, labels, scale)
        if train:
            loss += sum(head(labels, scale) for head in self._heads)
        return loss, correct, gradient

    def predict(self, images: Array) -> Array:
        """Return the logits (N, classes) in evaluation mode, as a new array.

        It may be called at any point of a training step; it changes no buffer and no random state.
        """
        x = images
        for stage in self.stages:
            x = stage.forward(x, train=False)
        if x.dtype != self.dtype and self.backend.cast is not None:
            return self.backend.cast(x, self._precision)
        return x.copy()

    def release_predictions(self) -> None:
        """Free the inputs that kernels keep after predictions; an empty batch replaces them."""
        for stage in self.stages:
            stage.release_prediction()

    def reseed(self, *key: int) -> None:
        """Restart dropout's random numbers from non-negative integers, such as seed, rank and step."""
        for path, reseed in self._seeded:
            reseed((*key, crc32(path.encode())))


def _place(variables: Sequence[Variable]) -> tuple[Tensor, ...]:
    """Return the variables' positions in a flat vector, in their order."""
    tensors, offset = [], 0
    for variable in variables:
        tensors.append(Tensor(variable.name, offset, variable.shape, variable.decay, variable.rate))
        offset += math.prod(variable.shape)
    return tuple(tensors)


def _drawn(variables: Sequence[Variable], dtype: str, seed: int) -> Array:
    values = np.empty(_size(variables), dtype)
    for variable, view in zip(variables, _views(values, _place(variables)).values(), strict=True):
        name = variable.drawn_as or variable.name
        variable.initial(view, np.random.default_rng((seed, crc32(name.encode()))))
    return values


def _views(vector: Array, tensors: Sequence[Tensor]) -> dict[str, Array]:
    return {tensor.name: vector[tensor.span].reshape(tensor.shape) for tensor in tensors}


def _size(variables: Sequence[Variable]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def _distinct(names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]}: two layers of this name")


def _contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous else array.copy()
