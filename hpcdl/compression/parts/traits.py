"""Traits that a compressor declares in its own module: ``TRAITS: Final = Compression(error_feedback=True)``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Compression:
    """Traits of a compressor. A module that declares none has the defaults."""

    error_feedback: bool = True
    """The part that is not sent is added to the next gradient; the default of the cases."""
    unbiased: bool = False
    """The mean of its message is the gradient; no error feedback is needed."""
    whole_tensors: bool = False
    """Takes whole tensors: buckets are cut between tensors only."""
    both_ways: bool = False
    """A server encodes the sum again for the way back, with a residual of its own."""
    scaled: bool = True
    """Decoded values are about as large as those encoded; False: only their signs matter."""
    own_sums: bool = False
    """Its vectors have a type that only their own addition sums, and no library."""
    dependent_sums: bool = False
    """A sum of its vectors waits for another one."""
    rounds_values: bool = False
    """Rounds each value to a narrower type, so that parameters can be sent so as well."""
    own_momentum: bool = False
    """Has the momentum in its state, so that the optimizer must have none."""
    own_residual: str = ""
    """Vector in its ``state`` that holds what is not sent; for compressors without other error feedback."""
    on_device: bool = False
    """Computes where the gradient is, also in the memory of a GPU."""
    title: str = ""
    """Source in the literature, author and year."""
