"""A vector whose operand is elsewhere: what a library's collective reads, and where it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array


class Apart(NamedTuple):
    """In the place of the vector of :meth:`hpcdl.fabric.comm.Comm.native`: the collective is not in place.

    Both are equally long and of one kind. The operand stays as it is. A broadcast has one vector in MPI: rank 0
    copies its operand there.
    """

    operand: Array
    result: Array

    @property
    def nbytes(self) -> int:
        """Of either."""
        return self.result.nbytes


def ends(vector: Any) -> tuple[Array | None, Array]:
    """What a collective reads, None where that is what it writes; and what it writes."""
    return vector if isinstance(vector, Apart) else (None, vector)
