"""What a layer is: it infers shapes, declares its variables and binds itself to memory and kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.backend import Backend
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.initial import Initializer
    from hpcdl.nn.loss import AuxiliaryLoss


@dataclass(frozen=True, slots=True)
class Variable:
    """An array that a layer owns, as declared: trained with a gradient, or kept as state."""

    name: str
    shape: Shape
    initial: Initializer
    decay: bool = False
    """Whether weight decay is meant for it."""
    trained: bool = True
    """Whether it is a parameter; otherwise state, such as running statistics."""


class Bound(Protocol):
    """A layer at work: its kernels, its own buffers, its views into the replica's flat vectors."""

    def forward(self, x: Array, train: bool) -> Array:
        """Return the outputs (N, ...), valid until the next call."""
        ...

    def backward(self, dy: Array, wanted: bool) -> Array | None:
        """Overwrite the parameters' gradients; return the last input's, or None if not ``wanted``."""
        ...


class Layer(Protocol):
    """Structure only: one layer may be bound several times, to the same or to other memory."""

    @property
    def name(self) -> str:
        """Unique among its siblings."""
        ...

    def output(self, shape: Shape) -> Shape:
        """Return an output's shape for inputs of ``shape``; ValueError, naming the layer, if impossible."""
        ...

    def declare(self, shape: Shape) -> list[Variable]:
        """Return the variables needed for inputs of ``shape``, in the order of the flat vector."""
        ...

    def bind(self, shape: Shape, site: Site) -> Bound:
        """Build the kernels for inputs of ``shape`` and connect them to the variables found at ``site``."""
        ...


@dataclass(frozen=True)
class Site:
    """The place in a replica where a layer is bound."""

    path: str
    """Names of the enclosing layers and of this one, joined by dots."""
    backend: Backend
    dtype: str
    values: dict[str, Array]
    """Parameters and state by path and name: ``conv1.weight``."""
    gradients: dict[str, Array]
    seeded: list[tuple[str, Callable[[Sequence[int]], None]]]
    """Whoever draws random numbers leaves its path and its reseed here."""
    heads: list[AuxiliaryLoss]
    """Whoever has a classifier of its own leaves its part of the loss here."""

    def inside(self, name: str) -> Site:
        """Return the place of the layer ``name`` within this one."""
        return replace(self, path=f"{self.path}.{name}")

    def value(self, name: str) -> Array:
        """Return the view of a declared variable."""
        return self.values[f"{self.path}.{name}"]

    def gradient(self, name: str) -> Array:
        """Return the view of a declared parameter's gradient."""
        return self.gradients[f"{self.path}.{name}"]
