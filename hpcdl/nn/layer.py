"""Layer protocol: infer shapes, declare variables, bind to memory and kernels; initial values, sequences, loss.

Initialisers fill a host array in place, given the draws of its elements. The first axis of a variable is the
outputs. The drawn numbers do not depend on the dtype of the array.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol
from zlib import crc32

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Affine, Backend, Bound, Elementary, Noise, Weights
from hpcdl.nn.geometry import Blob, Shape

PIECE: Final = 1 << 16
"""Elements drawn at once; their float64 numbers fit into a cache."""
COUNTED: Final = 4
"""Random numbers for each count of the generator."""


@dataclass(frozen=True)
class Draws:
    """Random numbers of a variable's elements, by a counter-based generator (Philox; Salmon et al. 2011).

    Each number depends only on ``key`` and on the element's position in the whole variable, so that a rank draws
    its part of a split variable alone.
    """

    key: tuple[int, int]
    shape: Shape
    """Shape of the whole variable, whose first axis is the outputs."""
    cut: tuple[Shape, int, slice]
    """The part of the whole variable: reshaped to a shape, positions on an axis of it."""

    @property
    def fan_in(self) -> int:
        return math.prod(self.shape[1:])

    def uniform(self, values: Array, low: float, high: float) -> None:
        """Fill ``values`` with uniform numbers between ``low`` and ``high``."""
        for piece, begin in self._pieces(values):
            piece[:] = low + (high - low) * self._uniform(begin, len(piece))

    def normal(self, values: Array, deviation: float) -> None:
        """Fill ``values`` with normal numbers of mean 0, by the transform of Box and Muller (1958)."""
        for piece, begin in self._pieces(values):
            # Two uniform numbers give two normal ones: begin with a whole pair, as the whole tensor's draw does.
            skipped = begin % 2
            numbers = self._uniform(begin - skipped, skipped + len(piece) + (begin + len(piece)) % 2)
            radius, angle = deviation * np.sqrt(-2 * np.log1p(-numbers[::2])), 2 * np.pi * numbers[1::2]
            numbers[::2], numbers[1::2] = radius * np.cos(angle), radius * np.sin(angle)
            piece[:] = numbers[skipped : skipped + len(piece)]

    def _uniform(self, begin: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the numbers in [0, 1) of ``count`` positions from ``begin`` on."""
        # A count of the generator is four numbers, so that any position is reached without drawing those before.
        counter, skipped = divmod(begin, COUNTED)
        generator = np.random.Generator(np.random.Philox(key=self.key, counter=counter))
        return generator.random(skipped + count)[skipped:]

    def _pieces(self, values: Array) -> Iterator[tuple[Array, int]]:
        """Yield short consecutive parts of ``values``, each with its first position in the whole variable."""
        view, axis, positions = self.cut
        inner = math.prod(view[axis + 1 :])
        low, high, _ = positions.indices(view[axis]) if view else (0, 1, 1)
        length, stride = (high - low) * inner, (view[axis] if view else 1) * inner
        for row, run in enumerate(values.reshape(-1, length) if length else ()):
            for begin in range(0, length, PIECE):
                yield run[begin : begin + PIECE], row * stride + low * inner + begin


def draws(seed: int, name: str, shape: Shape) -> Draws:
    """Return the draws of the whole variable ``name``."""
    first, second = np.random.SeedSequence((seed, crc32(name.encode()))).generate_state(2, np.uint64)
    return Draws((int(first), int(second)), shape, (shape, 0, slice(None)))


Initializer = Callable[[Array, Draws], None]
"""Fills an array with values drawn for its elements."""


def he(values: Array, draws: Draws) -> None:
    """Fill with normal numbers of variance 2 / fan_in, for layers before a ReLU (He et al. 2015, section 2.2)."""
    draws.normal(values, math.sqrt(2 / draws.fan_in))


def xavier(values: Array, draws: Draws) -> None:
    """Fill with uniform numbers of variance 1 / fan_in: Caffe's ``xavier`` (after Glorot & Bengio 2010)."""
    bound = math.sqrt(3 / draws.fan_in)
    draws.uniform(values, -bound, bound)


def gaussian(deviation: float) -> Initializer:
    """Return an initialiser: normal distribution with mean 0 and the given standard deviation."""
    return lambda values, draws: draws.normal(values, deviation)


def constant(value: float) -> Initializer:
    """Return an initialiser that sets all elements to ``value``."""
    return lambda values, _draws: values.fill(value)


zeros = constant(0.0)
ones = constant(1.0)


def per_filter(fill: Initializer) -> Initializer:
    """Return an initialiser that fills (P, Q, K, R, S, C) as P Q K filters (R, S, C)."""
    return lambda values, draws: fill(values, replace(draws, shape=(math.prod(draws.shape[:3]), *draws.shape[3:])))


Alone = Literal["elements", "channels", "rows"]
"""Positions that a layer treats independently, so that ranks can have some each: ``alone`` of its class.

A layer without it, a user's own too, has the whole images of its rank.
"""


@dataclass(frozen=True, slots=True)
class Variable:
    """Declaration of an array that a layer owns: a trained parameter or untrained state."""

    name: str
    shape: Shape
    initial: Initializer
    decay: bool = False
    """Apply weight decay."""
    rate: float = 1.0
    """Factor on the learning rate."""
    trained: bool = True
    """True for a parameter; False for state, such as running statistics."""
    drawn_as: str | None = None
    """Full name that seeds the initial value; None: its own."""


class Layer(Protocol):
    """Description of a layer without memory; it can be bound several times."""

    @property
    def name(self) -> str:
        """Name, unique among the layers of one list."""

    def output(self, shape: Shape) -> Shape:
        """Return the output shape for inputs of ``shape``; ValueError, naming the layer, if impossible."""

    def declare(self, shape: Shape) -> list[Variable]:
        """Return the variables needed for inputs of ``shape``, in the order of the flat vector."""

    def bind(self, shape: Shape, site: "Site") -> Bound:
        """Build the kernels for inputs of ``shape`` and connect them to the variables of ``site``."""


@dataclass(frozen=True)
class Site:
    """Backend, dtype and variables that a layer is bound to."""

    path: str
    """Names of the enclosing layers and of this layer, joined by dots."""
    backend: Backend
    dtype: str
    values: dict[str, Array]
    """Parameters and state by full name, such as ``conv1.weight``."""
    gradients: dict[str, Array]
    seeded: list[tuple[str, Noise]]
    """Paths and ops of all layers that draw random numbers; each appends its own."""
    heads: list["AuxiliaryLoss"]
    """Losses of auxiliary classifiers; each classifier appends its own."""
    continued: Mapping[str, Noise] = field(default_factory=dict)
    """Ops of an earlier binding by path; layers that draw random numbers continue theirs."""
    stashes: dict[str, list[Array]] = field(default_factory=dict)
    """Arrays that one part of a divided layer leaves for a later one, by the layer's path."""

    def inside(self, name: str) -> "Site":
        return replace(self, path=f"{self.path}.{name}")

    def value(self, name: str) -> Array:
        return self.values[f"{self.path}.{name}"]

    def gradient(self, name: str) -> Array:
        return self.gradients[f"{self.path}.{name}"]

    def stash(self, path: str) -> list[Array]:
        """Return the stack of arrays that the parts of the divided layer at ``path`` share."""
        return self.stashes.setdefault(path, [])


class Chain:
    """Sequence of layers; an empty one is the identity. Names of variables begin with their layer's."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)

    def output(self, shape: Shape) -> Shape:
        for layer in self.layers:
            shape = layer.output(shape)
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        declared: list[Variable] = []
        for layer in self.layers:
            declared += [
                replace(variable, name=f"{layer.name}.{variable.name}") for variable in layer.declare(shape)
            ]
            shape = layer.output(shape)
        return declared

    def bind(self, shape: Shape, site: Site) -> "BoundChain":
        bound = []
        for layer in self.layers:
            bound.append(layer.bind(shape, site.inside(layer.name)))
            shape = layer.output(shape)
        return BoundChain(bound)


@dataclass(eq=False)
class BoundChain:
    """Sequence of bound layers."""

    links: Sequence[Bound]

    def forward(self, x: Array, train: bool) -> Array:
        for link in self.links:
            x = link.forward(x, train)
        return x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        for i in reversed(range(len(self.links))):
            dx = self.links[i].backward(dy, needs_dx or i > 0)
            if dx is None:
                return None
            dy = dx
        return dy if needs_dx else None


class Plain:
    """Base of layers without variables; outputs have the shape of the inputs unless a class says otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name

    def output(self, shape: Shape) -> Shape:
        return shape

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        return []


@dataclass(eq=False)
class BoundElementary:
    """Bound layer without parameters; ``identity_in_evaluation``: the op is for training only."""

    op: Elementary
    identity_in_evaluation: bool = False

    def forward(self, x: Array, train: bool) -> Array:
        return self.op.forward(x) if train or not self.identity_in_evaluation else x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        return self.op.backward(dy) if needs_dx else None


class BoundAffine:
    """Bound layer with a ``weight`` and an optional ``bias``."""

    def __init__(self, op: Affine, site: Site, biased: bool) -> None:
        self._op = op
        bias, dbias = (site.value("bias"), site.gradient("bias")) if biased else (None, None)
        self._weights = Weights(site.value("weight"), bias, site.gradient("weight"), dbias)

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        return self._op.forward(x, self._weights)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        return self._op.backward(dy, self._weights, needs_dx)


@dataclass(frozen=True, slots=True)
class SizedLayer:
    """Layer without arithmetic, such as a transformer block; its fields are the columns of a table of layers.

    It has FLOP of a sample, or seconds of ``batch`` samples, or both; None: not stated.
    """

    name: str
    parameters: int
    activations: int
    """Elements of the output for one sample."""
    forward_flop: int | None = None
    backward_flop: int | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    batch: int | None = None
    update_seconds: float | None = None
    """Time of the optimizer, whatever the batch."""
    group: str | None = None
    """Name that consecutive layers share which sharded training gathers together; None: the layer alone."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Times of forward and backward for a sample; 0 if not stated."""
        batch = self.batch or 1
        return (self.forward_seconds or 0.0) / batch, (self.backward_seconds or 0.0) / batch

    def output(self, _shape: Shape) -> Shape:
        return (self.activations,)

    def declare(self, _shape: Shape) -> list[Variable]:
        return [Variable("sizes", (self.parameters,), zeros)] if self.parameters else []

    def bind(self, _shape: Shape, site: Site) -> Bound:
        """Raise ValueError: only the backend of sizes, which binds layers itself, can have one."""
        raise ValueError(f"{site.path}: has sizes and no arithmetic: it can be replayed and predicted only")


class SoftmaxCrossEntropy:
    """Cross-entropy of logits (N, classes) and labels (N,); labels are integers from 0 to classes - 1."""

    def __init__(self, classes: int, backend: Backend, dtype: str) -> None:
        self._classes = classes
        self._op = backend.cross_entropy(Blob((classes,), dtype))

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """See :class:`hpcdl.nn.backend.CrossEntropy`; ValueError: inconsistent shapes, a label out of range.

        The gradient array is valid until the next call. An image is correct if its label has the largest logit;
        among equal logits the first counts.
        """
        if logits.shape != (len(labels), self._classes) or labels.ndim != 1:
            raise ValueError(
                f"loss: logits {logits.shape} and labels {labels.shape} are not (N, {self._classes}) and (N,)"
            )
        return self._op(logits, labels, scale)


class AuxiliaryLoss:
    """Weighted cross-entropy of an auxiliary classifier, computed in its backward.

    It stores the logits of a training forward until then.
    """

    def __init__(self, path: str, classes: int, weight: float, backend: Backend, dtype: str) -> None:
        self.path = path
        self.classes = classes
        self.value = 0.0
        """Weight x the summed loss of the last backward."""
        self._weight = weight
        self._loss = SoftmaxCrossEntropy(classes, backend, dtype)
        self._logits: Array | None = None
        self._aim: tuple[Array, float] | None = None

    def put(self, logits: Array) -> None:
        self._logits, self._aim = logits, None

    def aim(self, labels: Array, scale: float) -> None:
        """Set the labels (N,) of the next backward, and the factor ``scale`` on its gradient."""
        self._aim = labels, scale

    def take(self) -> Array:
        """Return ``scale`` x the gradient, and keep the loss in ``value``.

        ValueError: no labels since the last forward, or labels that do not fit the logits.
        """
        if self._aim is None or self._logits is None:
            raise ValueError(f"{self.path}: backward called without labels")
        (labels, scale), logits = self._aim, self._logits
        self._aim = self._logits = None
        total, _, gradient = self._loss(logits, labels, self._weight * scale)
        self.value = self._weight * total
        return gradient
