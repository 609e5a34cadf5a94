"""Where a rule's parameters are, apart from where its gradient is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.optim.protocol import Optimizer


def position(optimizer: Optimizer, parameters: Array, into: Array) -> None:
    """Put ``parameters`` (n,) without what ``optimizer`` has looked ahead into ``into`` (n,)."""
    velocity = optimizer.state.get("velocity") if optimizer.look_ahead else None
    if velocity is None:  # not looked ahead, or not yet
        into[:] = parameters
    else:
        into[:] = velocity
        into *= -optimizer.look_ahead
        into += parameters
