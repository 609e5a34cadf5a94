"""Precisions: how activations are stored, and what parameters are kept in beside them.

float32 and float64 networks keep everything in one precision. In bfloat16 and float16 networks activations and
their gradients have 16 bits, products are summed in 32, and parameters, their gradients, running statistics and
what optimizers remember stay float32 (Micikevicius et al. 2018, "master weights").
"""

from __future__ import annotations

from typing import Final

HALF: Final = ("bfloat16", "float16")
"""Precisions of activations beside which parameters stay float32."""


def master(dtype: str) -> str:
    """Return the precision of parameters, gradients and images where activations are ``dtype``."""
    return "float32" if dtype in HALF else dtype


def carrier(dtype: str) -> str:
    """Return the dtype of an array that holds ``dtype``: bfloat16 is no array library's, so 16-bit words do."""
    return "uint16" if dtype == "bfloat16" else dtype
