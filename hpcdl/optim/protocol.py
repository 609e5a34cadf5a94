"""What a training strategy may ask of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


class Optimizer(Protocol):
    """An update rule and its memory, for one flat vector or for one shard of it.

    Every rule is per scalar: updating a whole vector with one optimizer gives the same numbers as updating
    its shards with one optimizer each. An optimizer belongs to one vector: its first update fixes the
    length.
    """

    state: dict[str, Array]
    """State vectors by name, shape and dtype those of the parameters; made at the first update, so empty
    before. They may be averaged over ranks, stored, replaced and counted (``sum(v.nbytes for v in
    state.values())``)."""

    steps: int
    """Updates made so far; with ``state`` the whole memory of the optimizer, and what a checkpoint holds."""

    @property
    def look_ahead(self) -> float:
        """How many times ``state["velocity"]`` the parameters are ahead of the rule; 0 but for Nesterov's."""
        ...

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Change ``parameters`` (n,) in place by one step along ``gradients`` (n,), which stay as they are.

        Everything is computed in the dtype of ``parameters``; n may be 0. Raises ValueError if the shapes
        differ, if the vectors are not flat, or if the state was made for another vector.
        """
        ...
