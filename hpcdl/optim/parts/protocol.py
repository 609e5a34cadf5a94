"""Protocol of optimizers, their base, and checks of their settings."""

from typing import Final, Protocol

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.optim.parts.per_tensor import UNIFORM, Multipliers


class Optimizer(Protocol):
    """Update rule with its state, for one flat vector or one shard of it.

    Rules act per scalar; those with the attribute ``whole_tensors`` act per tensor, and a shard must have whole
    ones. An optimizer belongs to one vector; its first update fixes the length.
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

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Change ``parameters`` (n,) in place by one step along ``gradients`` (n,), which are not changed.

        All arithmetic is in the dtype of ``parameters``; n may be 0. Raises ValueError if the shapes differ, if
        the vectors are not flat, or if the state belongs to another vector.
        """


MAX_INTEGER: Final = 1 << 63
"""Upper limit of numbers, as in all suites."""


def _number(name: str, value: float) -> float:
    # suite files are written by hand and may contain true, "0.9" or nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_INTEGER:
        raise ValueError(f"{name} must be a finite number, less than 2^63, not {value!r}")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number >= 0."""
    if _number(name, value) < 0:
        raise ValueError(f"{name} must not be negative, but is {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number > 0."""
    if _number(name, value) <= 0:
        raise ValueError(f"{name} must be positive, but is {value!r}")
    return float(value)


def fraction(name: str, value: float) -> float:
    """Return ``value`` if 0 <= value < 1."""
    if not 0 <= _number(name, value) < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, but is {value!r}")
    return float(value)


def state_vector(state: dict[str, Array], name: str, like: Array) -> Array:
    """Return the vector ``state[name]``; create zeros with the shape and dtype of ``like`` if missing.

    Raises ValueError if the vector has another shape or dtype, because an optimizer belongs to one vector.
    """
    if name not in state:
        state[name] = np.zeros_like(like)
    vector = state[name]
    if vector.shape != like.shape or vector.dtype != like.dtype:
        raise ValueError(
            f"{name} was made for {vector.dtype} parameters of shape {vector.shape}, "
            f"not for {like.dtype} of shape {like.shape}"
        )
    return vector


def without_lookahead(optimizer: Optimizer, parameters: Array, into: Array) -> None:
    """Set ``into`` (n,) to ``parameters`` (n,) minus the look-ahead of ``optimizer``."""
    velocity = optimizer.state.get("velocity") if optimizer.look_ahead else None
    if velocity is None:  # no look-ahead, or no update yet
        into[:] = parameters
    else:
        into[:] = velocity
        into *= -optimizer.look_ahead
        into += parameters


def change(optimizer: Optimizer, parameters: Array, gradients: Array, learning_rate: float, before: Array) -> None:
    """Copy ``parameters`` (n,) to ``before`` and replace them by the change that the optimizer makes."""
    before[:] = parameters
    optimizer.update(parameters, gradients, learning_rate)
    parameters -= before


class Rule:
    """Base of optimizers: what all of them have, and the count of updates. A subclass has ``step``."""

    def __init__(self, weight_decay: float) -> None:
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.multipliers = UNIFORM
        self.state: dict[str, Array] = {}
        self.steps = 0

    @property
    def look_ahead(self) -> float:
        return 0.0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        self.step(parameters, gradients, float(learning_rate))
        self.steps += 1

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        """See :meth:`Optimizer.update`; the rate is a float, so that it keeps the precision of the parameters."""
        raise NotImplementedError
