"""Protocol of optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.optim.parts.per_tensor import Multipliers


class Optimizer(Protocol):
    """Update rule with its state, for one flat vector or one shard of it.

    Rules act per scalar: one optimizer on the whole vector gives the same result as one optimizer per shard. An
    optimizer belongs to one vector; its first update fixes the length.
    """

    multipliers: Multipliers
    """Entries without weight decay, or with a factor on the learning rate; set by the session."""

    state: dict[str, Array]
    """State vectors by name, with the parameters' shape and dtype; empty before the first update. They may be
    averaged over ranks, stored, replaced, and counted (``sum(v.nbytes for v in state.values())``)."""

    steps: int
    """Number of updates so far; a checkpoint stores ``steps`` and ``state``."""

    @property
    def look_ahead(self) -> float:
        """Return the factor of ``state["velocity"]`` in the look-ahead; 0 except for Nesterov's rule."""
        ...

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Change ``parameters`` (n,) in place by one step along ``gradients`` (n,), which are not changed.

        All arithmetic is in the dtype of ``parameters``; n may be 0. Raises ValueError if the shapes differ, if
        the vectors are not flat, or if the state belongs to another vector.
        """
        ...
