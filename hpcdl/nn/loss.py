"""Softmax cross-entropy loss of a network and of its auxiliary classifiers."""

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Backend
from hpcdl.nn.geometry import Blob


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
