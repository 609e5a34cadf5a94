from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.aggregation.butterfly import butterfly
from hpcdl.aggregation.halving_doubling import halving_doubling

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.fabric.comm import Array, Comm

    Scheme = Callable[[Comm, Array], Coroutine[Any, Any, None]]

MEMORY = "host"

SHORT = 2048
"""Bytes; where MPICH draws the line."""


async def auto(comm: Comm, buffer: Array, choices: Mapping[int, Scheme] | None = None) -> None:
    """The scheme that was measured to be the best at this size, or one by a rule of thumb. Any p.

    ``choices`` gives the scheme of each size in bytes: cases measure it before they begin. Without it, the rule of
    Thakur, Rabenseifner & Gropp 2005, section 4.5: recursive doubling up to 2 KiB, and halving and doubling
    beyond. The costs are those of the scheme that is chosen.
    """
    if choices is not None:
        await choices[buffer.nbytes](comm, buffer)
    else:
        await (butterfly if buffer.nbytes <= SHORT else halving_doubling)(comm, buffer)
