"""Parameters without weight decay, or with their own factor on the learning rate."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hpcdl.fabric.comm import Array

BLOCK_BYTES: Final = 1 << 17
"""Bytes of one vector per block. Adam's four vectors and two of scratch fit a 1 MiB level-two cache, and a block
takes much longer than the microsecond for starting an array operation."""


@dataclass(frozen=True)
class SpecialEntries:
    """Entries of one block without weight decay, and entries with a factor on the learning rate."""

    undecayed: list[slice]
    rates: list[tuple[slice, float]]

    def decayed(self, gradients: Array, parameters: Array, decay: float, scratch: Array) -> Array:
        """Return gradients + decay * parameters, without the second term for entries without weight decay.

        The result is in ``scratch``, or is ``gradients`` itself if ``decay`` is 0; do not write to it.
        """
        if decay == 0:
            return gradients
        np.multiply(parameters, decay, out=scratch)
        self.without_decay(scratch)
        scratch += gradients
        return scratch

    def without_decay(self, decay: Array) -> None:
        """Set the decay of entries without weight decay to 0."""
        for span in self.undecayed:
            decay[span] = 0

    def scale(self, step: Array) -> None:
        """Multiply a step made with the common learning rate by the entries' factors."""
        for span, multiple in self.rates:
            step[span] *= multiple


class Multipliers:
    """Spans of a flat vector without weight decay, or with a factor on the learning rate."""

    def __init__(self, tensors: Sequence[tuple[slice, bool, float]] = ()) -> None:
        """Take span, weight decay and factor on the rate of each tensor; without tensors all entries are equal."""
        self._tensors = tensors
        self._by_block: dict[tuple[int, int], SpecialEntries] = {}

    @classmethod
    def of(cls, tensors: Iterable[Any]) -> "Multipliers":
        """Return the multipliers of a vector made of ``tensors``, as :class:`hpcdl.nn.replica.Tensor`."""
        return cls([(tensor.span, tensor.decay, tensor.rate) for tensor in tensors])

    def __deepcopy__(self, _memo: object) -> "Multipliers":
        return self

    def part(self, span: slice) -> "Multipliers":
        return Multipliers(
            [
                (slice(entries.start - span.start, entries.stop - span.start), decay, rate)
                for entries, decay, rate in self._tensors
                if entries.start < span.stop and entries.stop > span.start
            ]
        )

    def tensors(self, *vectors: Array) -> Sequence[tuple[slice, bool, float]]:
        """Return span, weight decay and factor on the rate of each tensor, or part of it, in the flat ``vectors``.

        Without tensors the vector is one. Raises ValueError if a vector is not flat or the lengths differ.
        """
        length = _length(vectors)
        return self._clipped(0, length) if self._tensors else [(slice(0, length), True, 1.0)]

    def check_whole(self, vector: Array) -> None:
        """Raise ValueError if a tensor is not whole in ``vector``."""
        if any(span.start < 0 or span.stop > vector.size for span, _, _ in self._tensors):
            raise ValueError("this optimizer needs whole tensors, but the vector ends inside of one")

    def blocks(self, *vectors: Array, scratch: int) -> Iterator[tuple[tuple[Array, ...], SpecialEntries]]:
        """Yield blocks of the vectors with ``scratch`` uninitialised ones, and their special entries.

        With blocks only the first of several array operations reads from memory. The last block may be shorter.
        Scratch has the dtype of the first vector. GPU arrays are one block. Raises ValueError if a vector is not
        flat or the lengths differ.
        """
        length, first = _length(vectors), vectors[0]
        block = BLOCK_BYTES // first.itemsize if isinstance(first, np.ndarray) else max(length, 1)
        buffers = [np.empty_like(first[:block]) for _ in range(scratch)]
        for begin in range(0, length, block):
            end = min(begin + block, length)
            parts = [vector[begin:end] for vector in vectors] + [buffer[: end - begin] for buffer in buffers]
            yield tuple(parts), self._special(begin, end)

    def scale(self, step: Array) -> None:
        """Multiply a step of the whole vector, made with the common learning rate, by the entries' factors."""
        self._special(0, step.size).scale(step)

    def _special(self, begin: int, end: int) -> SpecialEntries:
        """Return the special entries of a block, counted from its start."""
        if (begin, end) not in self._by_block:
            inside = self._clipped(begin, end)
            self._by_block[begin, end] = SpecialEntries(
                [entries for entries, decay, _ in inside if not decay],
                [(entries, rate) for entries, _, rate in inside if rate != 1],
            )
        return self._by_block[begin, end]

    def _clipped(self, begin: int, end: int) -> list[tuple[slice, bool, float]]:
        """Return the tensors between two positions, clipped to them and counted from the first."""
        return [
            (slice(max(0, entries.start), min(end - begin, entries.stop)), decay, rate)
            for entries, decay, rate in self.part(slice(begin, end))._tensors  # noqa: SLF001 - of the same class
        ]


def _length(vectors: Sequence[Array]) -> int:
    """Return the length of flat vectors. Raises ValueError if one is not flat or the lengths differ."""
    length = vectors[0].size
    if any(vector.shape != (length,) for vector in vectors):
        raise ValueError(
            f"expected flat vectors of one length, got shapes {', '.join(str(v.shape) for v in vectors)}"
        )
    return int(length)


def squares(pairs: Iterable[tuple[Array, Array]]) -> Array:
    """Return the squared Euclidean norms of pairs of flat vectors, (pairs, 2)."""
    return np.array([[float(vector @ vector) for vector in pair] for pair in pairs]).reshape(-1, 2)


UNIFORM: Final = Multipliers()
"""Multipliers for equal entries: all with weight decay and the common learning rate."""
