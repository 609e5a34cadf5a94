"""A network with memory: one rank's copy of the parameters, their gradients, and the stages that use them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from hpcdl.nn.layer import Site, Variable
from hpcdl.nn.loss import SoftmaxCrossEntropy
from hpcdl.nn.precision import carrier, master

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.backend import Backend
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Bound, Layer


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter's place in the flat vectors, in elements; matrices and filters have their outputs first."""

    name: str
    """Path and name: ``conv1.weight``, ``inception_3a.3x3.bias``."""
    offset: int
    shape: Shape
    decay: bool
    """Whether weight decay is meant for it: not for biases and batch normalisation."""

    @property
    def span(self) -> slice:
        """Its part of the flat vectors."""
        return slice(self.offset, self.offset + math.prod(self.shape))


class Stage:
    """A top-level layer at work.

    Outputs and gradients belong to the stage: they are valid until its next forward or backward, and inputs,
    images included, must stay as they are until the backward is done. Training and evaluation have separate
    memory, so an evaluation may come between a forward and its backward.
    """

    def __init__(self, layer: Layer, shape: Shape, span: slice, site: Site, *, first: bool) -> None:
        self.name = layer.name
        self.span = span
        """Its part of the flat vectors, empty without parameters."""
        self.shape = shape
        """Of an input, without the batch."""
        self.output = layer.output(shape)
        """The shape of an output, without the batch."""
        self._layer = layer
        self._site = site
        self._first = first
        self._outputs = carrier(site.dtype)
        self._inputs = master(site.dtype) if first else self._outputs
        heads = len(site.heads)
        bound = layer.bind(shape, site)
        if site.backend.record is not None and len(site.heads) == heads:
            # a classifier of its own hands its logits to the loss anew at each step, which no recording would do
            bound = site.backend.record(bound)
        self._training = bound
        self._evaluation: Bound | None = None
        self._batch: int | None = None

    def forward(self, x: Array, train: bool = True) -> Array:
        """Return the outputs (N, *output); N may change from call to call.

        ValueError: an input of another shape or dtype than the network's.
        """
        self._check("input", x, self.shape, self._inputs)
        if train:
            self._batch = len(x)
            return self._training.forward(self._narrow(_contiguous(x)), train=True)
        if self._evaluation is None:
            self._evaluation = self._layer.bind(self.shape, replace(self._site, seeded=[], heads=[]))
        return self._evaluation.forward(self._narrow(_contiguous(x)), train=False)

    def backward(self, dy: Array) -> Array | None:
        """Overwrite the gradients of ``span``; return the gradient of the last training forward's input.

        None for the first stage: the gradient of the images is not computed. What the forward kept is let go,
        so there is one backward for a forward.

        ValueError: a gradient that does not fit the last training forward, or a second one.
        """
        self._check("gradient", dy, self.output, self._outputs)
        if len(dy) != self._batch:
            raise ValueError(
                f"{self.name}: gradient of {len(dy)} images after a forward of {self._batch or 'none'}"
            )
        self._batch = None
        return self._training.backward(_contiguous(dy), wanted=not self._first)

    def _narrow(self, x: Array) -> Array:
        """Return images in the activations' precision."""
        if self._inputs == self._outputs:
            return x
        assert self._site.backend.cast is not None, "checked by the replica"
        return self._site.backend.cast(x, self._site.dtype)

    def _check(self, what: str, array: Array, shape: Shape, dtype: str) -> None:
        if array.shape[1:] != shape or array.dtype != dtype:
            raise ValueError(
                f"{self.name}: {what} is {array.dtype} {array.shape}, not {dtype} (N, "
                f"{', '.join(map(str, shape))})"
            )


class Replica:
    """Layers bound to flat vectors, one contiguous vector each for parameters, gradients and state.

    A step is every stage's forward, the loss, every stage's backward in reverse. Spans follow the order of
    the stages, so gradients become final from the end of the vector to its start.

    Each tensor is drawn from a generator of its own, seeded by ``seed`` and its name: the same whatever the
    rank, and whatever else the network contains.

    ``layers`` take images of ``shape``, (H, W, C) or (F,). ``dtype`` is float32 or float64;
    or, with a backend that can, bfloat16 or float16: then activations have 16 bits, and the flat vectors, images
    and predictions are float32. ``allocate(size, dtype)`` makes the vectors of parameters and gradients, zeros, in
    memory of the caller's choice; it is for backends whose arrays are numpy's.

    ValueError: a layer that cannot take the shape it gets, two layers of one name, another dtype, no layer.
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
    ) -> None:
        backend.check_precision(dtype)
        if not layers:
            raise ValueError("a network needs at least one layer")
        _distinct(layer.name for layer in layers)
        self.backend = backend
        self._precision = dtype
        self.dtype = master(dtype)
        """Of the flat vectors, images and predictions."""
        self.loss_scale = 1.0
        """What gradients are multiplied by, so that 16 bits can hold them; whoever updates divides by it."""
        self.shape = shape

        inputs, trained, kept = [shape], list[list[Variable]](), list[Variable]()
        for layer in layers:
            declared = [
                replace(variable, name=f"{layer.name}.{variable.name}") for variable in layer.declare(inputs[-1])
            ]
            trained.append([variable for variable in declared if variable.trained])
            kept += [variable for variable in declared if not variable.trained]
            inputs.append(layer.output(inputs[-1]))
        self.output = inputs[-1]

        parameters = [variable for variables in trained for variable in variables]
        _distinct(variable.name for variable in (*parameters, *kept))
        self.tensors = _place(parameters)
        self.parameters = backend.asarray(_drawn(parameters, self.dtype, seed))
        self.gradients = (allocate or backend.zeros)(self.parameters.size, self.dtype)
        if allocate is not None:
            elsewhere = allocate(self.parameters.size, self.dtype)
            elsewhere[:] = self.parameters
            self.parameters = elsewhere
        self.state = backend.asarray(_drawn(kept, self.dtype, seed))
        """Running statistics, changed by training forwards and used by evaluation; may be empty."""

        values = _views(self.parameters, self.tensors) | _views(self.state, _place(kept))
        site = Site("", backend, dtype, values, _views(self.gradients, self.tensors), [], [])
        stages, start = list[Stage](), 0
        for layer, variables, seen in zip(layers, trained, inputs[:-1], strict=True):
            end = start + _size(variables)
            place = replace(site, path=layer.name)
            stages.append(Stage(layer, seen, slice(start, end), place, first=not stages))
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
        """Return the sum of the losses, how many images are right, and the gradient x ``scale``.

        With ``scale`` = 1 / global batch, the gradients' sum over ranks is the gradient of the mean loss. The
        returned gradient is valid until the next call.

        An image's loss is its cross-entropy. In training each auxiliary classifier adds its own, weighted, the
        sum being what Caffe's solver displays; its gradient reaches it in the backward of its stage. Whether an
        image is right is the last classifier's word.

        ValueError: shapes that do not fit, a label that is no class, a network that does not end in a vector.
        """
        if self._loss is None:
            raise ValueError(f"loss: the network ends in {self.output}, not in a vector of logits")
        scale *= self.loss_scale
        loss, correct, gradient = self._loss(logits, labels, scale)
        if train:
            loss += sum(head(labels, scale) for head in self._heads)
        return loss, correct, gradient

    def predict(self, images: Array) -> Array:
        """Return the logits (N, classes) in evaluation mode, in an array of the caller's own.

        May be called at any moment of a training step: it leaves every buffer and random number as it was.
        """
        x = images
        for stage in self.stages:
            x = stage.forward(x, train=False)
        if x.dtype != self.dtype and self.backend.cast is not None:
            return self.backend.cast(x, self._precision)
        return x.copy()

    def let_go(self) -> None:
        """Let go of what predictions hold: kernels keep their inputs for a backward, and here none comes."""
        self.predict(self.backend.zeros(0, self.dtype).reshape(0, *self.shape))

    def reseed(self, *key: int) -> None:
        """Restart dropout's random numbers from non-negative integers, such as seed, rank and step."""
        for path, reseed in self._seeded:
            reseed((*key, crc32(path.encode())))


def _place(variables: Sequence[Variable]) -> tuple[Tensor, ...]:
    """One after the other."""
    tensors, offset = [], 0
    for variable in variables:
        tensors.append(Tensor(variable.name, offset, variable.shape, variable.decay))
        offset += math.prod(variable.shape)
    return tuple(tensors)


def _drawn(variables: Sequence[Variable], dtype: str, seed: int) -> Array:
    values = np.empty(_size(variables), dtype)
    for variable, view in zip(variables, _views(values, _place(variables)).values(), strict=True):
        variable.initial(view, np.random.default_rng((seed, crc32(variable.name.encode()))))
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
