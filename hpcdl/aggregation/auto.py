from collections.abc import Callable, Mapping
from typing import Final

from hpcdl.aggregation.butterfly import butterfly
from hpcdl.aggregation.halving_doubling import halving_doubling
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Program

Scheme = Callable[[Comm, Array], Program[None]]

SHORT = 2048
"""Longest short vector in bytes, as in MPICH."""

TRAITS: Final = Aggregation(memory="host", adaptive=True, autotuned=False)


async def auto(
    comm: Comm,
    buffer: Array,
    choices: Mapping[int, Scheme] | None = None,
    *,
    table: str | None = None,  # noqa: ARG001 - cases read it
) -> None:
    """The scheme that autotuning measured as the fastest for this size. Any p.

    ``choices``: scheme of each size in bytes; cases measure it before they begin, or read the file ``table`` of
    ``hpcdl tune``. The default is the rule of Thakur, Rabenseifner & Gropp 2005, section 4.5: ``butterfly`` up to
    2 KiB, ``halving_doubling`` above. The costs are those of the chosen scheme.
    """
    if choices is not None:
        await choices[buffer.nbytes](comm, buffer)
    else:
        await (butterfly if buffer.nbytes <= SHORT else halving_doubling)(comm, buffer)
