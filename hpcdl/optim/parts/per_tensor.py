"""Parameters without weight decay, or with their own factor on the learning rate."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array


BLOCK_BYTES: Final = 1 << 17
"""Bytes of one vector per block. Adam's four vectors and two of scratch fit a 1 MiB level-two cache, and a block
takes much longer than the microsecond for starting an array operation."""


def block_length(vector: Array) -> int:
    """Return the number of entries per block; all entries for GPU arrays, whose operations are kernel launches."""
    return BLOCK_BYTES // vector.itemsize if isinstance(vector, np.ndarray) else vector.size


def blocks(*vectors: Array, scratch: int = 1) -> Iterator[tuple[Array, ...]]:
    """Yield corresponding blocks of the vectors, followed by ``scratch`` uninitialised vectors of that length.

    An update rule has several array operations; with blocks only the first one reads from memory. The vectors are
    flat and have one length n; the last block may be shorter, and n = 0 yields nothing. Scratch has the dtype of
    the first vector.

    Raises ValueError if a vector is not flat or the lengths differ.
    """
    shapes = [vector.shape for vector in vectors]
    if len(shapes[0]) != 1 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"expected flat vectors of one length, got shapes {', '.join(map(str, shapes))}")
    length = vectors[0].size
    block = block_length(vectors[0])
    buffers = [np.empty_like(vectors[0][:block]) for _ in range(scratch)]
    for begin in range(0, length, block or 1):
        here = slice(begin, min(begin + block, length))
        width = here.stop - begin
        yield (*(vector[here] for vector in vectors), *(buffer[:width] for buffer in buffers))


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
        self.without_decay(scratch)
        scratch += gradients
        return scratch

    def without_decay(self, decay: Array) -> None:
        """Set the decay of entries without weight decay to 0."""
        if self._undecayed is not None:
            decay[self._undecayed] = 0

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
        tensors: Sequence[tuple[slice, bool, float]] = (),
    ) -> None:
        """Take positions in ascending order; ``asarray`` moves them to the memory of the vectors.

        ``tensors``: span, weight decay and factor on the rate of each tensor.
        """
        self._undecayed = undecayed
        self._rates = rates
        self._asarray = asarray
        self._tensors = tensors
        self._by_block: dict[tuple[int, int], list[SpecialEntries]] = {}

    @classmethod
    def of(cls, tensors: Iterable[_Tensor], asarray: Callable[[NDArray[Any]], Array] = np.asarray) -> Multipliers:
        """Return the multipliers of a vector made of ``tensors``, given in the order of their spans."""
        tensors = list(tensors)
        multiples = sorted({tensor.rate for tensor in tensors} - {1.0})
        return cls(
            _positions(tensor.span for tensor in tensors if not tensor.decay),
            {
                multiple: _positions(tensor.span for tensor in tensors if tensor.rate == multiple)
                for multiple in multiples
            },
            asarray,
            [(tensor.span, tensor.decay, tensor.rate) for tensor in tensors],
        )

    def __deepcopy__(self, _memo: object) -> Multipliers:
        """Return itself; it is immutable."""
        return self

    def part(self, span: slice) -> Multipliers:
        """Return the multipliers of the part ``span`` of the vector."""
        rates = {multiple: _within(positions, span) for multiple, positions in self._rates.items()}
        tensors = [
            (slice(own.start - span.start, own.stop - span.start), decay, rate)
            for own, decay, rate in self._tensors
            if own.start < span.stop and own.stop > span.start
        ]
        return Multipliers(_within(self._undecayed, span), rates, self._asarray, tensors)

    def whole_tensors(self, *vectors: Array) -> Sequence[tuple[slice, bool, float]]:
        """Return span, weight decay and factor on the rate of each tensor of the flat ``vectors``.

        Without tensors the vector is one. Raises ValueError if a vector is not flat, the lengths differ, or a
        tensor is not whole in them.
        """
        length = vectors[0].size
        if any(vector.shape != (length,) for vector in vectors):
            shapes = ", ".join(str(vector.shape) for vector in vectors)
            raise ValueError(f"expected flat vectors of one length, got shapes {shapes}")
        if any(span.start < 0 or span.stop > length for span, _, _ in self._tensors):
            raise ValueError("this optimizer needs whole tensors, but the vector ends inside of one")
        return self._tensors or [(slice(0, length), True, 1.0)]

    def blocks(self, *vectors: Array, scratch: int) -> Iterator[tuple[tuple[Array, ...], SpecialEntries]]:
        """Yield the blocks of :func:`hpcdl.optim.parts.per_tensor.blocks`, each with its special entries.

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


def norm(vector: Array) -> float:
    """Return the Euclidean norm of a flat vector."""
    return math.sqrt(float(vector @ vector))


def _positions(spans: Iterable[slice]) -> NDArray[np.int64]:
    ranges = [np.arange(span.start, span.stop) for span in spans]
    return np.concatenate(ranges) if ranges else np.empty(0, np.int64)


def _within(positions: NDArray[np.int64], span: slice) -> NDArray[np.int64]:
    """Return the positions in ``span``, relative to its start."""
    first, last = np.searchsorted(positions, [span.start, span.stop])
    places: NDArray[np.int64] = positions[first:last] - span.start
    return places


UNIFORM: Final = Multipliers(np.empty(0, np.int64), {})
"""Multipliers for equal entries: all with weight decay and the common learning rate."""
