"""Parameters without weight decay, or with their own factor on the learning rate."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from hpcdl.optim.parts.cache_blocks import block_length, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array


class _Tensor(Protocol):
    """Properties of :class:`hpcdl.nn.replica.Tensor` that an update depends on."""

    @property
    def span(self) -> slice: ...
    @property
    def decay(self) -> bool: ...
    @property
    def rate(self) -> float: ...


class SpecialEntries:
    """Entries of one block without weight decay, or with a factor on the learning rate, by position."""

    def __init__(self, undecayed: Array | None, rates: list[tuple[float, Array]]) -> None:
        self._undecayed = undecayed
        self._rates = rates

    def decayed(self, gradients: Array, parameters: Array, decay: float, scratch: Array) -> Array:
        """Return gradients + decay * parameters, without the second term for entries without weight decay.

        The result is in ``scratch``, or is ``gradients`` itself if ``decay`` is 0; do not write to it.
        """
        if decay == 0:
            return gradients
        np.multiply(parameters, decay, out=scratch)
        if self._undecayed is not None:
            scratch[self._undecayed] = 0
        scratch += gradients
        return scratch

    def scale(self, step: Array) -> None:
        """Multiply a step made with the common learning rate by the entries' factors."""
        for multiple, positions in self._rates:
            step[positions] *= multiple


class Multipliers:
    """Entries of a flat vector without weight decay, and entries with a factor on the learning rate.

    Only positions of such entries are stored: biases and batch normalisation are about 1 % of a network.
    """

    def __init__(
        self,
        undecayed: NDArray[np.int64],
        rates: Mapping[float, NDArray[np.int64]],
        asarray: Callable[[NDArray[Any]], Array] = np.asarray,
    ) -> None:
        """Take positions in ascending order; ``asarray`` moves them to the memory of the vectors."""
        self._undecayed = undecayed
        self._rates = rates
        self._asarray = asarray
        self._by_block: dict[tuple[int, int], list[SpecialEntries]] = {}

    @classmethod
    def of(cls, tensors: Iterable[_Tensor], asarray: Callable[[NDArray[Any]], Array] = np.asarray) -> Multipliers:
        """Return the multipliers of a vector made of ``tensors``, given in the order of their spans."""
        tensors = list(tensors)
        multiples = sorted({tensor.rate for tensor in tensors} - {1.0})
        return cls(
            _positions(tensor.span for tensor in tensors if not tensor.decay),
            {one: _positions(tensor.span for tensor in tensors if tensor.rate == one) for one in multiples},
            asarray,
        )

    def __deepcopy__(self, _memo: object) -> Multipliers:
        """Return itself; it is immutable."""
        return self

    def part(self, span: slice) -> Multipliers:
        """Return the multipliers of the part ``span`` of the vector."""
        rates = {multiple: _within(positions, span) for multiple, positions in self._rates.items()}
        return Multipliers(_within(self._undecayed, span), rates, self._asarray)

    def blocks(self, *vectors: Array, scratch: int) -> Iterator[tuple[tuple[Array, ...], SpecialEntries]]:
        """Yield the blocks of :func:`hpcdl.optim.parts.cache_blocks.blocks`, each with its special entries.

        Raises ValueError if a vector is not flat or the lengths differ.
        """
        special = self._special(vectors[0].size, block_length(vectors[0]))
        return zip(blocks(*vectors, scratch=scratch), special, strict=False)

    def scale(self, step: Array) -> None:
        """Multiply a step of the whole vector, made with the common learning rate, by the entries' factors."""
        for whole in self._special(step.size, step.size):
            whole.scale(step)

    def _special(self, length: int, block: int) -> list[SpecialEntries]:
        """Return the special entries of each block of a vector of that length."""
        if (length, block) not in self._by_block:
            bounds = [*range(0, length, max(1, block)), length]
            self._by_block[length, block] = [self._of_block(slice(*span)) for span in pairwise(bounds)]
        return self._by_block[length, block]

    def _of_block(self, span: slice) -> SpecialEntries:
        undecayed = _within(self._undecayed, span)
        rates = [(multiple, _within(positions, span)) for multiple, positions in self._rates.items()]
        return SpecialEntries(
            self._asarray(undecayed) if undecayed.size else None,
            [(multiple, self._asarray(positions)) for multiple, positions in rates if positions.size],
        )


def _positions(spans: Iterable[slice]) -> NDArray[np.int64]:
    ranges = [np.arange(span.start, span.stop) for span in spans]
    return np.concatenate(ranges) if ranges else np.empty(0, np.int64)


def _within(positions: NDArray[np.int64], span: slice) -> NDArray[np.int64]:
    """Return the positions in ``span``, relative to its start."""
    first, last = np.searchsorted(positions, [span.start, span.stop])
    found: NDArray[np.int64] = positions[first:last] - span.start
    return found


UNIFORM: Final = Multipliers(np.empty(0, np.int64), {})
"""Multipliers for equal entries: all with weight decay and the common learning rate."""
