"""Softmax and cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob


class CrossEntropy:
    """loss = log(sum of exp(logits)) - logits[label].

    The largest logit is subtracted first, so that exp cannot overflow.
    """

    def __init__(self, geometry: Blob) -> None:
        self._classes = geometry.shape[0]

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """See :class:`hpcdl.nn.ops.CrossEntropy`; ValueError where a label is out of range."""
        if labels.size and not 0 <= labels.min() <= labels.max() < self._classes:
            raise ValueError(
                f"labels from {labels.min()} to {labels.max()}, but classes are 0 to {self._classes - 1}"
            )
        images, label = np.arange(len(logits)), labels.astype(np.intp)
        gradient = allocate(logits.shape, logits.dtype)
        np.subtract(logits, logits.max(axis=1, keepdims=True), out=gradient)
        true = gradient[images, label]
        np.exp(gradient, out=gradient)
        total = gradient.sum(axis=1)
        loss = np.sum(np.log(total) - true, dtype=np.float64)
        correct = np.count_nonzero(logits.argmax(axis=1) == label)
        gradient *= (float(scale) / total)[:, np.newaxis]
        gradient[images, label] -= float(scale)
        return float(loss), int(correct), gradient
