"""Weight decay as an L2 penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


def with_decay(gradients: Array, parameters: Array, decay: float, scratch: Array) -> Array:
    """The gradient of loss + decay/2 * sum(parameters^2), each (n,): gradients + decay * parameters.

    The result stands in ``scratch``, or is ``gradients`` itself if ``decay`` is 0: not for writing.
    """
    if decay == 0:
        return gradients
    np.multiply(parameters, decay, out=scratch)
    scratch += gradients
    return scratch
