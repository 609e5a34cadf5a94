"""Bound layers that consist of a single op."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.layer import Site
    from hpcdl.nn.ops import Affine, Elementary


class BoundElementary:
    """Bound layer without parameters; training and evaluation are alike."""

    def __init__(self, op: Elementary) -> None:
        self._op = op

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._op.forward(x)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._op.backward(dy) if needs_dx else None


class BoundAffine:
    """Bound layer with a ``weight`` and an optional ``bias``."""

    def __init__(self, op: Affine, site: Site, biased: bool) -> None:
        self._op = op
        self._weight = site.value("weight")
        self._dweight = site.gradient("weight")
        self._bias = site.value("bias") if biased else None
        self._dbias = site.gradient("bias") if biased else None

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._op.forward(x, self._weight, self._bias)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._op.backward(dy, self._weight, self._dweight, self._dbias, needs_dx)
