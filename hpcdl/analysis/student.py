"""Student's t distribution, of many values at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


def beyond(t: Vector, freedom: npt.ArrayLike) -> Vector:
    """Return the probability that Student's t is larger than ``t`` >= 0; NaN where ``freedom`` is."""
    from scipy.special import stdtr  # late: ranks do not need it

    return np.asarray(stdtr(freedom, -t), np.float64)


def upper(probability: float, freedom: npt.ArrayLike) -> Vector:
    """Return t that Student's t exceeds with ``probability`` < 0.5; NaN where ``freedom`` is."""
    from scipy.special import stdtrit  # late: ranks do not need it

    return np.asarray(-stdtrit(freedom, probability), np.float64)
