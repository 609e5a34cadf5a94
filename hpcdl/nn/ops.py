"""Protocols of bound layers and of the kernels (ops) that a backend builds, one op per layer.

An op owns the arrays that it returns. They are valid until its next forward (gradients: its next backward).
Forward stores what backward needs; backward releases it, so each forward allows one backward. The caller must not
change an input until backward. An op writes to no argument except parameter gradients, which it overwrites. The
batch size may change between calls and may be 0.

All arrays are contiguous and of the geometry's dtype; activations are (N, H, W, C) or (N, F).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

from hpcdl.fabric.comm import Array


class Bound(Protocol):
    """A layer bound to kernels, buffers and its views of the replica's flat vectors."""

    def forward(self, x: Array, train: bool) -> Array:
        """Return the outputs (N, ...), valid until the next call."""

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """Overwrite the parameters' gradients; return the last input's gradient, or None unless ``needs_dx``."""


class Elementary(Protocol):
    """Op without parameters: ReLU, sigmoid, pooling, local response normalisation."""

    def forward(self, x: Array) -> Array:
        """Return the outputs (N, ...)."""

    def backward(self, dy: Array) -> Array:
        """Return the gradient with respect to the last input."""


class Weights(NamedTuple):
    """Parameters of an affine op, and where its backward writes their gradients; without a bias two are None."""

    weight: Array
    bias: Array | None
    dweight: Array
    dbias: Array | None


class Affine(Protocol):
    """Op with weights: convolution (K, R, S, C / groups), matrix product (out, in), or locally connected layer.

    A locally connected layer has weights (P, Q, K, R, S, C) and bias (P, Q, K). The geometry can include a ReLU.
    """

    def forward(self, x: Array, weights: Weights) -> Array:
        """Return the outputs (N, ...)."""

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        """Overwrite both gradients in ``weights``; return the input gradient, or None unless ``needs_dx``."""


class NormVectors(NamedTuple):
    """Vectors (C,) of batch normalisation: parameters, running statistics, gradients of the parameters."""

    gamma: Array
    beta: Array
    mean: Array
    variance: Array
    dgamma: Array
    dbeta: Array


class BatchNormalization(Protocol):
    """Batch normalisation. The geometry can include a shortcut and a ReLU."""

    def forward(self, x: Array, shortcut: Array | None, vectors: NormVectors, train: bool) -> Array:
        """Normalise by the running statistics; if ``train``, normalise by the batch and update them."""

    def backward(self, dy: Array, vectors: NormVectors) -> tuple[Array, Array | None]:
        """Overwrite ``dgamma`` and ``dbeta``; return the gradients of the last training input and shortcut."""


class Noise(Elementary, Protocol):
    """Dropout: zeroes random activations and scales up the others."""

    def reseed(self, key: Sequence[int]) -> None:
        """Restart the random numbers from a key of non-negative integers."""

    def continued(self) -> Self:
        """Return an op with masks of its own that draws this op's next random numbers."""


class Concatenation(Protocol):
    """Concatenate blobs along the last axis."""

    def forward(self, pieces: Sequence[Array]) -> Array: ...

    def backward(self, dy: Array) -> list[Array]:
        """Return the gradient of each blob, contiguous."""


class Addition(Protocol):
    """Sum arrays."""

    def forward(self, terms: Sequence[Array]) -> Array:
        """Return the sum of two or more arrays of one shape."""


class CrossEntropy(Protocol):
    """Softmax and cross-entropy."""

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """Return the summed loss, the number of correct images, and ``scale`` x the gradient of that sum."""
