"""Layer protocol: infer shapes, declare variables, bind to memory and kernels; layers of one op; sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Affine, Backend, Bound, Elementary, Noise, Weights
from hpcdl.nn.geometry import Shape
from hpcdl.nn.initial import Initializer, zeros
from hpcdl.nn.loss import AuxiliaryLoss

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
    heads: list[AuxiliaryLoss]
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
