"""Replica: one rank's copy of a network, with flat vectors of parameters and gradients; its layers as stages."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Protocol
from zlib import crc32

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Backend, Bound
from hpcdl.nn.geometry import Shape, master, storage_dtype
from hpcdl.nn.layer import Chain, Layer, Site, SoftmaxCrossEntropy, Variable, draws


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
        return slice(self.offset, self.offset + math.prod(self.shape))


class Places:
    """Positions of variables in a flat vector: those of each layer, one after the other."""

    def __init__(self, layers: Sequence[Sequence[Variable]]) -> None:
        self.variables = [*chain.from_iterable(layers)]
        *offsets, self.size = accumulate((math.prod(variable.shape) for variable in self.variables), initial=0)
        self.tensors = tuple(
            Tensor(variable.name, offset, variable.shape, variable.decay, variable.rate)
            for variable, offset in zip(self.variables, offsets, strict=True)
        )
        numbers = pairwise(accumulate(map(len, layers), initial=0))
        ends = [*offsets, self.size]
        self.spans = [slice(ends[first], ends[last]) for first, last in numbers]
        """Slice of each layer."""

    def draw(self, vector: Array, seed: int) -> None:
        """Fill a host vector with initial values."""
        for variable, view in zip(self.variables, views(vector, self.tensors).values(), strict=True):
            variable.initial(view, draws(seed, variable.drawn_as or variable.name, variable.shape))


def views(vector: Array, tensors: Sequence[Tensor]) -> dict[str, Array]:
    """Return views of a flat vector by the tensors' names."""
    return {tensor.name: vector[tensor.span].reshape(tensor.shape) for tensor in tensors}


class Stage:
    """A bound top-level layer.

    Outputs and gradients are valid until its next forward or backward. Inputs must not change before backward.
    Training and evaluation use separate memory, so an evaluation may run between a forward and its backward.
    """

    def __init__(self, layer: Layer, shape: Shape, spans: tuple[slice, slice], site: Site, *, first: bool) -> None:
        self.name = layer.name
        self.span, self.state = spans
        """Slices of the flat vectors of parameters and of state; empty without them."""
        self.divided = bool(getattr(layer, "cuts", ()))
        """True if this rank has only its part of the layer's parameters and state."""
        self.group: str | None = getattr(layer, "group", None)
        """Name that stages share whose parameters sharded training gathers together; None: the stage alone."""
        self.shape = shape
        self.output = layer.output(shape)
        self._layer = layer
        self._site = site
        self._first = first
        self.output_dtype = storage_dtype(site.dtype)
        self.input_dtype = master(site.dtype) if first else self.output_dtype
        """Dtypes of the arrays of outputs and inputs."""
        before = len(site.heads)
        bound = layer.bind(shape, site) if site.backend.bind is None else site.backend.bind(layer, shape, site)
        self.heads = tuple(site.heads[before:])
        stashes: bool = getattr(layer, "stashes", False)
        if site.backend.record is not None and not self.heads and not stashes:
            # an auxiliary classifier passes its logits to the loss in each forward; a recording would skip that,
            # as it would skip the arrays that a part leaves for another
            bound = site.backend.record(bound)
        self._training = bound
        self._evaluation: Bound | None = None
        self._batch: int | None = None
        self._part: Array | None = None
        self._total: Array | None = None

    def forward(self, x: Array, train: bool = True) -> Array:
        """Return the outputs (N, *output), or (1, *output) of a whole batch; N may differ between calls.

        ValueError: an input of the wrong shape or dtype.
        """
        self._check("input", x, self.shape, self.input_dtype)
        if train:
            y = self._training.forward(self._prepared(x), train=True)
            self._batch = len(y)
            return y
        if self._evaluation is None:
            self._evaluation = self._layer.bind(self.shape, replace(self._site, seeded=[], heads=[]))
        return self._evaluation.forward(self._prepared(x), train=False)

    def backward(self, dy: Array, *, first: bool = True) -> Array | None:
        """Overwrite the gradients of ``span``; return the gradient of the last training input.

        The first stage returns None. Each training forward allows one backward. A stage of :meth:`again` adds to
        the gradients unless ``first``.

        ValueError: a gradient that does not fit the last training forward, or a second backward.
        """
        self._check("gradient", dy, self.output, self.output_dtype)
        if len(dy) != self._batch:
            raise ValueError(
                f"{self.name}: gradient has {len(dy)} images, last forward had {self._batch or 'none'}"
            )
        # a second backward would find the arrays released that forward stored
        self._batch = None
        dx = self._training.backward(_contiguous(dy), needs_dx=not self._first)
        if self._total is not None:
            if first:
                self._total[:] = self._part
            else:
                self._total += self._part
        return dx

    def again(
        self, views: dict[str, Array], part: Array, total: Array, stashes: dict[str, list[Array]]
    ) -> "Stage":
        """Bind the layer once more to the same parameters and state, with activations of its own.

        Backward writes to ``part``, of which ``views`` are views by full name, and adds it to ``total``.
        ``stashes`` is that of all stages of the binding. Random numbers continue those of this one.
        """
        continued = dict(self._site.seeded)
        site = replace(self._site, stashes=stashes, continued=continued, gradients=views, seeded=[], heads=[])
        again = Stage(self._layer, self.shape, (self.span, self.state), site, first=self._first)
        if not site.backend.sizes_only:
            again._part, again._total = part, total
        return again

    def _prepared(self, x: Array) -> Array:
        """Return contiguous inputs, images in the precision of the activations."""
        x = _contiguous(x)
        if self.input_dtype == self.output_dtype:
            return x
        assert self._site.backend.cast is not None, "Replica checks the precision"
        return self._site.backend.cast(x, self._site.dtype)

    def _check(self, role: str, array: Array, shape: Shape, dtype: str) -> None:
        if array.shape[1:] != shape or array.dtype != dtype:
            raise ValueError(
                f"{self.name}: {role} is {array.dtype} {array.shape}, not {dtype} (N, "
                f"{', '.join(map(str, shape))})"
            )


def _contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous else array.copy()


class Divided(Protocol):
    """A rank's parts of a network: :class:`hpcdl.nn.split.division.Division`."""

    @property
    def parts(self) -> Sequence[Layer]: ...
    @property
    def shapes(self) -> Sequence[Shape]: ...
    @property
    def output(self) -> Shape: ...


class Replica:
    """Layers bound to flat vectors: one contiguous vector each for parameters, gradients and state.

    A step runs every stage's forward, the loss, and every stage's backward in reverse. Spans follow the order of
    the stages, so gradients become final from the end of the vector to its start. The initial value of each tensor
    depends only on ``seed`` and the tensor's name.

    ``layers`` take images of ``shape``, (H, W, C) or (F,). A replica may hold only the layers of ``part``: its
    inputs are the outputs of the layer before them, and its initial values are those of the whole network.
    ``dtype`` is the precision of activations; with 16 bits, the flat vectors, images and predictions are float32.
    ``allocate(size, dtype)`` returns zeroed vectors for parameters and gradients; it needs a backend with numpy
    arrays. ``division`` gives this rank's parts of the layers (:func:`hpcdl.nn.split.division.divide`) in place of
    ``layers``.

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
        division: Divided | None = None,
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

        shapes = [] if division is None else [*division.shapes, division.output]
        shapes = shapes or [*accumulate(layers, lambda taken, layer: layer.output(taken), initial=shape)]
        begin, end, _ = part.indices(len(layers))
        if begin >= end:
            raise ValueError(f"layers {begin} to {end} of {len(layers)} are none")
        self.is_first, self.is_last = begin == 0, end == len(layers)
        """True if the replica holds the first layer of the network, the last one."""
        self.shape, self.output = shapes[begin], shapes[end]

        held = [*zip(layers[begin:end], shapes[begin:end], strict=True)]
        declared = [Chain([layer]).declare(taken) for layer, taken in held]
        trained, untrained = (
            Places([[variable for variable in variables if variable.trained is kind] for variables in declared])
            for kind in (True, False)
        )
        _distinct(variable.name for places in (trained, untrained) for variable in places.variables)
        self.tensors = trained.tensors
        self.parameters = self._drawn(trained, allocate or np.zeros, seed)
        self.gradients = (allocate or backend.zeros)(trained.size, self.dtype)
        self.layer_gradient = backend.zeros(0, self.dtype)
        """Gradient of one layer for one microbatch; empty without :meth:`bindings`."""
        self.state = self._drawn(untrained, np.zeros, seed)
        """Running statistics; training forwards update them, evaluation reads them; may be empty."""

        values = views(self.parameters, trained.tensors) | views(self.state, untrained.tensors)
        site = Site("", backend, dtype, values, views(self.gradients, trained.tensors), [], [])
        spans = zip(trained.spans, untrained.spans, strict=True)
        self.stages = tuple(
            Stage(layer, taken, layer_spans, replace(site, path=layer.name), first=layer is layers[0])
            for (layer, taken), layer_spans in zip(held, spans, strict=True)
        )
        self._seeded = site.seeded
        _distinct(path for path, _ in self._seeded)
        self.reseed(seed)
        self.heads = tuple(site.heads)
        """Losses of auxiliary classifiers; backward needs their labels (:meth:`AuxiliaryLoss.aim`)."""
        for head in self.heads:
            if (head.classes,) != shapes[-1]:
                raise ValueError(f"{head.path}: {head.classes} classes, but the network ends in {shapes[-1]}")
        has_loss = self.is_last and len(self.output) == 1
        self._loss = SoftmaxCrossEntropy(self.output[0], backend, dtype) if has_loss else None

    def _drawn(self, places: Places, zeros: Callable[[int, str], Array], seed: int) -> Array:
        """Return a vector of initial values on the device; zeros if there are sizes alone."""
        if self.backend.sizes_only:
            return self.backend.zeros(places.size, self.dtype)
        values = zeros(places.size, self.dtype)
        places.draw(values, seed)
        return self.backend.asarray(values)

    def loss(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """Return the summed loss, the number of correct images, and ``scale`` x the gradient, until the next call.

        With ``scale`` = 1 / global batch, the sum of the gradients over ranks is the gradient of the mean loss.
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

    def bindings(self, count: int, part: slice = slice(None)) -> tuple[tuple[Stage, ...], ...]:
        """Bind the layers of ``part`` ``count`` times more, for as many microbatches in flight.

        A layer's backward writes to memory that all layers share; its gradient is added to ``gradients`` at once.
        """
        longest = max(stage.span.stop - stage.span.start for stage in self.stages[part])
        self.layer_gradient = shared = self.backend.zeros(longest, self.dtype)
        bindings = []
        for _ in range(count):
            binding, stashes = list[Stage](), dict[str, list[Array]]()
            for stage in self.stages[part]:
                begin, end = stage.span.start, stage.span.stop
                tensors = [
                    replace(tensor, offset=tensor.offset - begin)
                    for tensor in self.tensors
                    if begin <= tensor.offset < end
                ]
                part_views = views(shared, tensors)
                binding.append(stage.again(part_views, shared[: end - begin], self.gradients[stage.span], stashes))
            bindings.append(tuple(binding))
        return tuple(bindings)


def _distinct(names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]}: two layers of this name")
