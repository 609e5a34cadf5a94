"""Uncertainty of a fitted network's cost parameters and of predictions with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

PRICES: Final = ("alpha", "beta", "gamma", "inside alpha", "inside beta")
"""Cost parameters: seconds per message, per byte, per byte reduced; then per message and byte within a host."""

DEVIATIONS: Final = 2
"""Standard deviations on each side of a 95 % interval."""

SINGULAR: Final = 1e-10
"""Smallest eigenvalue that is not a rounding error, for a diagonal of 1."""

DOUBTFUL: Final = 0.1
"""A prediction whose relative uncertainty is larger is undetermined."""


@dataclass(frozen=True)
class Certainty:
    """Fitted cost parameters with their uncertainty."""

    prices: Vector
    """Cost parameters in the order of :data:`PRICES`."""
    information: Matrix
    """(prices, prices): inverse covariance (1/s^2); 0 for a parameter that no measured time depends on."""
    errors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Median, worst and number of relative errors, by kind of prediction."""
    notes: Sequence[str] = ()
    """Measurements that the fit omits."""

    @property
    def pays(self) -> list[str]:
        """Return the parameters that some measured time depends on."""
        return [PRICES[price] for price in np.flatnonzero(np.diag(self.information))]

    @property
    def undetermined(self) -> list[str]:
        """Return the parameters that may be 0, or of which only a sum with others is known."""
        return [name for name, unit in zip(PRICES, np.eye(len(PRICES)), strict=True)
                if name in self.pays and self.doubt(unit) >= 1]  # fmt: skip

    def doubt(self, coefficients: Vector) -> float:
        """Return half the 95 % interval of ``coefficients @ prices`` relative to it; infinity if unknown."""
        predicted = float(coefficients @ self.prices)
        size = np.sqrt(np.diag(self.information))
        paid = size > 0
        if coefficients[~paid].any():
            return math.inf
        scaled = coefficients[paid] / size[paid]
        values, directions = np.linalg.eigh(
            self.information[np.ix_(paid, paid)] / np.outer(size[paid], size[paid])
        )
        deviation = math.sqrt(float(((directions.T @ scaled) ** 2 / values.clip(SINGULAR)).sum()))
        return DEVIATIONS * deviation / predicted if predicted > 0 else math.inf if deviation else 0.0
