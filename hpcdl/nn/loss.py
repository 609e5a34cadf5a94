"""Softmax cross-entropy loss of a network and of its auxiliary classifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.geometry import Blob

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.backend import Backend


class SoftmaxCrossEntropy:
    """Cross-entropy of logits (N, classes) and labels (N,); labels are integers from 0 to classes - 1."""

    def __init__(self, classes: int, backend: Backend, dtype: str) -> None:
        self._classes = classes
        self._op = backend.cross_entropy(Blob((classes,), dtype))

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """Return the summed loss, the number of correct images, and ``scale`` x the gradient of that sum.

        The gradient array is valid until the next call. An image is correct if its label has the largest logit;
        among equal logits the first counts.

        ValueError: inconsistent shapes, a label out of range.
        """
        if logits.shape != (len(labels), self._classes) or labels.ndim != 1:
            raise ValueError(
                f"loss: logits {logits.shape} and labels {labels.shape} are not (N, {self._classes}) and (N,)"
            )
        return self._op(logits, labels, scale)


class AuxiliaryLoss:
    """Weighted cross-entropy of an auxiliary classifier.

    It stores the logits between forward and loss, and their gradient between loss and backward.
    """

    def __init__(self, path: str, classes: int, weight: float, backend: Backend, dtype: str) -> None:
        self.path = path
        self.classes = classes
        self._weight = weight
        self._loss = SoftmaxCrossEntropy(classes, backend, dtype)
        self._logits: Array | None = None
        self._gradient: Array | None = None

    def put(self, logits: Array) -> None:
        """Store the logits (N, classes) of a training forward."""
        self._logits, self._gradient = logits, None

    def __call__(self, labels: Array, scale: float) -> float:
        """Return weight x the summed loss; 0 without a training forward since the last call.

        ValueError: labels that do not fit the stored logits.
        """
        if self._logits is None:
            return 0.0
        total, _, self._gradient = self._loss(self._logits, labels, self._weight * scale)
        self._logits = None
        return self._weight * total

    def take(self) -> Array:
        """Return the gradient (times ``scale``) and release it; ValueError if the loss was not computed."""
        if self._gradient is None:
            raise ValueError(f"{self.path}: backward called before the loss")
        gradient, self._gradient = self._gradient, None
        return gradient
