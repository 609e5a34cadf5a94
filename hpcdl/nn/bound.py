"""Protocol of a bound layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


class Bound(Protocol):
    """A layer bound to kernels, buffers and its views of the replica's flat vectors."""

    def forward(self, x: Array, train: bool) -> Array:
        """Return the outputs (N, ...), valid until the next call."""
        ...

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """Overwrite the parameters' gradients; return the last input's gradient, or None unless ``needs_dx``."""
        ...
