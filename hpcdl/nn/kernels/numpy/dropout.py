"""Dropout."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.activation_pool import allocate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import DropoutGeometry


class Dropout:
    """y = x * mask with mask 0 or 1 / (1 - ratio)."""

    def __init__(self, geometry: DropoutGeometry) -> None:
        self._ratio = geometry.ratio
        self._generator = np.random.default_rng(0)
        self._saved: tuple[Array, ...] = ()

    def reseed(self, key: Sequence[int]) -> None:
        """See :class:`hpcdl.nn.ops.Noise`."""
        self._generator.bit_generator.state = np.random.default_rng(key).bit_generator.state

    def continued(self) -> Dropout:
        """See :class:`hpcdl.nn.ops.Noise`; forwards of n and m images draw what one of n + m images draws."""
        other = copy(self)
        other._saved = ()  # noqa: SLF001 - of the same class
        return other

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        self._saved = ()
        # float32 for every dtype, so that all precisions draw the same masks
        uniform, mask, y = allocate(x.shape, "float32"), allocate(x.shape, x.dtype), allocate(x.shape, x.dtype)
        self._generator.random(dtype=np.float32, out=uniform)
        np.greater_equal(uniform, self._ratio, out=mask)
        mask *= 1 / (1 - self._ratio)
        np.multiply(x, mask, out=y)
        self._saved = (mask,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        (mask,), self._saved = self._saved, ()
        dx = allocate(dy.shape, dy.dtype)
        np.multiply(dy, mask, out=dx)
        return dx
