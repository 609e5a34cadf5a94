"""Parameters of look-ahead rules before the look-ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.optim.parts.protocol import Optimizer


def without_lookahead(optimizer: Optimizer, parameters: Array, into: Array) -> None:
    """Set ``into`` (n,) to ``parameters`` (n,) minus the look-ahead of ``optimizer``."""
    velocity = optimizer.state.get("velocity") if optimizer.look_ahead else None
    if velocity is None:  # no look-ahead, or no update yet
        into[:] = parameters
    else:
        into[:] = velocity
        into *= -optimizer.look_ahead
        into += parameters
