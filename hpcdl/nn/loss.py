"""Softmax cross-entropy, the end of every network and of the classifiers along it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.geometry import Blob

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.backend import Backend


class SoftmaxCrossEntropy:
    """The loss over logits (N, classes) and labels (N,), integers from 0 to classes - 1."""

    def __init__(self, classes: int, backend: Backend, dtype: str) -> None:
        self._classes = classes
        self._op = backend.cross_entropy(Blob((classes,), dtype))

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """Return the sum of the images' losses, how many are right, and ``scale`` x the sum's gradient.

        The gradient is the loss's own array, valid until the next call. An image counts as right where its
        label's logit is the first of the largest.

        ValueError: shapes that do not fit, a label that is no class.
        """
        if logits.shape != (len(labels), self._classes) or labels.ndim != 1:
            raise ValueError(
                f"loss: logits {logits.shape} and labels {labels.shape} are not (N, {self._classes}) and (N,)"
            )
        return self._op(logits, labels, scale)


class AuxiliaryLoss:
    """An auxiliary classifier's part of the loss: weight x its cross-entropy.

    It holds the classifier's logits from their forward to the loss, and their gradient from there to their
    backward.
    """

    def __init__(self, path: str, classes: int, weight: float, backend: Backend, dtype: str) -> None:
        self.path = path
        self.classes = classes
        self._weight = weight
        self._loss = SoftmaxCrossEntropy(classes, backend, dtype)
        self._logits: Array | None = None
        self._gradient: Array | None = None

    def put(self, logits: Array) -> None:
        """Hold the logits (N, classes) of a training forward."""
        self._logits, self._gradient = logits, None

    def __call__(self, labels: Array, scale: float) -> float:
        """Return weight x the sum of the images' losses; 0 if there was no training forward since the last call.

        ValueError: labels that do not fit the logits held.
        """
        if self._logits is None:
            return 0.0
        total, _, self._gradient = self._loss(self._logits, labels, self._weight * scale)
        self._logits = None
        return self._weight * total

    def take(self) -> Array:
        """Return the gradient, ``scale`` included, and let go of it; ValueError if the loss was not called."""
        if self._gradient is None:
            raise ValueError(f"{self.path}: backward without the loss before it")
        gradient, self._gradient = self._gradient, None
        return gradient
