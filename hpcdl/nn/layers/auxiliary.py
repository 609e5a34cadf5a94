"""Auxiliary classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.chain import BoundChain, Chain
from hpcdl.nn.geometry import Blob, Shape
from hpcdl.nn.loss import AuxiliaryLoss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Layer, Site, Variable
    from hpcdl.nn.ops import Addition


class Auxiliary:
    """Auxiliary classifier with its own loss during training (Szegedy et al. 2014, section 5).

    The layer returns x unchanged. ``layers`` end in logits; their softmax cross-entropy is added to the replica's
    loss with factor ``weight``. Evaluation skips them.
    """

    def __init__(self, name: str, layers: Sequence[Layer], *, weight: float = 0.3) -> None:
        self.name = name
        self.head = Chain(layers)
        self.weight = weight

    def output(self, shape: Shape) -> Shape:
        """Return the input shape; ValueError where the classifier rejects it or does not end in a vector."""
        self._classes(shape)
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        """Return the variables of the classifier."""
        self._classes(shape)
        return self.head.declare(shape)

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        loss = AuxiliaryLoss(site.path, self._classes(shape), self.weight, site.backend, site.dtype)
        site.heads.append(loss)
        return BoundAuxiliary(self.head.bind(shape, site), loss, site.backend.addition(Blob(shape, site.dtype)))

    def _classes(self, shape: Shape) -> int:
        if self.weight <= 0:
            raise ValueError(f"{self.name}: weight must be positive, got {self.weight}")
        try:
            output = self.head.output(shape)
        except ValueError as error:
            raise ValueError(f"{self.name}.{error}") from None
        if len(output) != 1:
            raise ValueError(f"{self.name}: the classifier ends in {output}, not in a vector of logits")
        return output[0]


class BoundAuxiliary:
    """Bound auxiliary classifier."""

    def __init__(self, head: BoundChain, loss: AuxiliaryLoss, add: Addition) -> None:
        self._head = head
        self._loss = loss
        self._add = add

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.bound.Bound`."""
        if train:
            self._loss.put(self._head.forward(x, train))
        return x

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`; ValueError without labels since forward."""
        dx = self._head.backward(self._loss.take(), needs_dx)
        return None if dx is None else self._add.forward([dy, dx])
