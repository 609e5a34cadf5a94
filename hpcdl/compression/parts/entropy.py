"""Empirical entropy, to which codes are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


def entropy(integers: Array) -> float:
    """Return the bits per integer of an ideal code of this distribution of values (Shannon 1948)."""
    counts = np.unique(integers, return_counts=True)[1]
    shares = counts / max(1, len(integers))
    return float(-(shares * np.log2(shares)).sum())
