"""Softmax cross-entropy, the end of every network."""

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
