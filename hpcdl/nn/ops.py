"""What a backend's kernels look like: objects built once per layer from a geometry.

An op keeps from its forward what its one backward needs, lets go of it there, and owns the arrays it returns:
they are valid until its next forward (or backward, for gradients). It may keep a reference to its input, which
must therefore stay as it is until the backward is done, and it never writes to an array it is given, save the
gradients of parameters, which it overwrites. The batch may change from call to call, and may be empty.

All arrays are contiguous and of the geometry's dtype; activations are (N, H, W, C) or (N, F).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array


class Elementary(Protocol):
    """An op without parameters: ReLU, sigmoid, pooling, local response normalisation."""

    def forward(self, x: Array) -> Array:
        """Return the outputs (N, ...)."""
        ...

    def backward(self, dy: Array) -> Array:
        """Return the gradient with respect to the last input."""
        ...


class Affine(Protocol):
    """A convolution, weights (K, R, S, C / groups), or a matrix product, weights (out, in).

    Or a locally connected layer, weights (P, Q, K, R, S, C), bias (P, Q, K). If the geometry says so, its
    outputs are rectified.
    """

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """Return the outputs (N, ...)."""
        ...

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """Overwrite ``dweight``, ``dbias``; return the last input's gradient, or None if not ``wanted``."""
        ...


class Normalization(Protocol):
    """Batch normalisation; the vectors are (C,).

    If the geometry says so, a shortcut is added to what was normalised, and the outputs are rectified.
    """

    def forward(
        self,
        x: Array,
        shortcut: Array | None,
        gamma: Array,
        beta: Array,
        mean: Array,
        variance: Array,
        train: bool,
    ) -> Array:
        """Normalise by ``mean`` and ``variance``, or (``train``) by the batch, moving those two."""
        ...

    def backward(self, dy: Array, gamma: Array, dgamma: Array, dbeta: Array) -> tuple[Array, Array | None]:
        """Overwrite ``dgamma`` and ``dbeta``; return the gradients of the last training input and shortcut."""
        ...


class Noise(Protocol):
    """Dropout."""

    def reseed(self, key: Sequence[int]) -> None:
        """Restart the random numbers from a key of non-negative integers."""
        ...

    def forward(self, x: Array) -> Array:
        """Return the activations that were kept, scaled up, and zeros for the others."""
        ...

    def backward(self, dy: Array) -> Array:
        """Return the gradient with respect to the last input."""
        ...


class Concatenation(Protocol):
    """Joins blobs on their last axis."""

    def forward(self, pieces: Sequence[Array]) -> Array:
        """Return the blobs side by side."""
        ...

    def backward(self, dy: Array) -> list[Array]:
        """Return each blob's part of the gradient, contiguous."""
        ...


class Addition(Protocol):
    """Sums arrays."""

    def forward(self, terms: Sequence[Array]) -> Array:
        """Return the sum of two or more arrays of one shape."""
        ...


class CrossEntropy(Protocol):
    """Softmax and cross-entropy."""

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """Return the sum of the losses, the number of correct images, and ``scale`` x the sum's gradient."""
        ...
